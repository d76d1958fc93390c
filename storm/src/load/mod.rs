//! What producers do.
//!
//! | module | what it holds |
//! |---|---|
//! | `shape` | what one operation is like, at random |
//! | `client` | carries operations out and writes down what it was told |
//! | `work` | the statements of one operation, inside its transaction |
//! | `cancel` | operations whose caller goes away in the middle |

mod cancel;
mod client;
mod shape;
mod work;

pub use client::{ProducerTask, Topics, run};
pub use shape::{Hint, Payload};
