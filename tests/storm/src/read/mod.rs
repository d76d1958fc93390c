//! Readers of the final state, with plain SQL wherever it can be.
//!
//! | module | what it holds |
//! |---|---|
//! | `cursor` | what the relay's stored cursor has passed |
//! | `forgotten` | what is no more since the database went back |
//! | `history` | everything together, for the checker |
//! | `quiet` | whether anything is still on its way |
//! | `leaks` | what nobody gave back |
//! | `unapplied` | where messages without an effect are |

mod cursor;
mod forgotten;
mod history;
mod leaks;
mod quiet;
mod unapplied;

pub use history::{Facts, history};
pub use quiet::{Pending, pending};
pub use unapplied::{Unapplied, unapplied};
