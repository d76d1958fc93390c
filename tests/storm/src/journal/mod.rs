//! Journals of a storm's processes.
//!
//! | module | contents |
//! |---|---|
//! | `producing` | operations: begun, sent, ended |
//! | `passing` | entries that went through the gateway of SQS |
//! | `going_back` | the data that a database lost when it was set back, and ids that it assigned twice |

mod going_back;
mod passing;
mod producing;

pub use going_back::{SET_BACK, SetBack, WENT_BACK, WentBack};
pub use harness::journal::{Journal, Part, Received, read};
pub use passing::Passed;
pub use producing::{Sent, Step, operations};
