//! SQS: batches that fail partially, errors, throttling, silence.
//!
//! | module | contents |
//! |---|---|
//! | `gateway` | [`Gateway`]: an HTTP proxy in front of the real server |
//! | `protocol` | requests and answers; pure |
//! | `errors` | [`SqsErrors`]: the faults |

mod errors;
mod gateway;
mod protocol;

pub use errors::SqsErrors;
pub use gateway::{Gateway, Mood};
