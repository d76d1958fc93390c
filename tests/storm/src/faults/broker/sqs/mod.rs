//! SQS: batches that fail in part, errors, throttling, silence.
//!
//! | module | what it holds |
//! |---|---|
//! | `gateway` | [`Gateway`]: an HTTP server before the real one |
//! | `protocol` | what the answers say; pure |
//! | `trouble` | [`Trouble`]: the faults |

mod gateway;
mod protocol;
mod trouble;

pub use gateway::{Gateway, Mood};
pub use trouble::Trouble;
