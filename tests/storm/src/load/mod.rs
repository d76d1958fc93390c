//! The producers' transactions.
//!
//! | module | contents |
//! |---|---|
//! | `shape` | the shape of one operation, at random |
//! | `client` | carries out operations and records the answers |
//! | `work` | the statements of one operation, inside its transaction |
//! | `settle_in` | the beginning of a transaction |
//! | `prepared` | operations whose transaction is prepared and undecided |
//! | `cancel` | operations whose caller cancels in the middle |

mod cancel;
mod client;
mod prepared;
mod settle_in;
mod shape;
mod work;

pub use client::{ProducerTask, Topics, run};
pub use harness::payload::{Hint, Payload};
pub(crate) use prepared::Preparation;
pub(crate) use shape::DELAY_MAX;
