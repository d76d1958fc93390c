//! HTTP: errors, wishes to wait, answers that are lost or never come, slowness.
//!
//! | module | contents |
//! |---|---|
//! | `gateway` | [`Gateway`]: a load balancer in front of the receivers |
//! | `errors` | [`HttpErrors`]: the faults |

mod errors;
mod gateway;

pub use errors::HttpErrors;
pub use gateway::{Gateway, Mood, REGISTER};
