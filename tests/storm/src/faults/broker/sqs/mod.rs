//! SQS: batches that fail in part, errors, throttling, silence.
//!
//! | module | what it holds |
//! |---|---|
//! | `gateway` | [`Gateway`]: an HTTP server before the real one |
//! | `protocol` | what the answers say; pure |
//! | `errors` | [`SqsErrors`]: the faults |

mod errors;
mod gateway;
mod protocol;

pub use errors::SqsErrors;
pub use gateway::{Gateway, Mood};
