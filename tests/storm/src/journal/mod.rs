//! Journals of a storm's processes.
//!
//! | module | what it holds |
//! |---|---|
//! | `producing` | operations: begun, sent, ended |
//! | `passing` | entries that went through the gateway of SQS |
//! | `going_back` | what a database forgot when it went back, ids that it assigned twice |

mod going_back;
mod passing;
mod producing;

pub use going_back::{SET_BACK, SetBack, WENT_BACK, WentBack};
pub use harness::journal::{Journal, Part, Received, read};
pub use passing::Passed;
pub use producing::{Sent, Step, operations};
