//! The producers' transactions.
//!
//! | module | what it holds |
//! |---|---|
//! | `shape` | what one operation is like, at random |
//! | `client` | carries operations out and writes down what it was told |
//! | `work` | the statements of one operation, inside its transaction |
//! | `settle_in` | how a transaction begins |
//! | `prepared` | operations that wait for their decision |
//! | `cancel` | operations whose caller goes away in the middle |

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
