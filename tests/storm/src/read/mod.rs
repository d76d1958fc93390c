//! Readers of the final state, in plain SQL wherever possible.
//!
//! | module | contents |
//! |---|---|
//! | `analysed` | tables that have statistics, in a storm without any |
//! | `cursor` | entries that the relay's stored cursor has passed |
//! | `forgotten` | messages and rows that were lost when the database was set back |
//! | `history` | the whole history, for the checker |
//! | `quiet` | the messages that are still in flight |
//! | `leaks` | resources that were not released |
//! | `unapplied` | the places of messages without an effect |

mod analysed;
mod cursor;
mod forgotten;
mod history;
mod leaks;
mod quiet;
mod unapplied;

pub use analysed::analysed;
pub use history::{Facts, history};
pub use quiet::{Pending, pending};
pub use unapplied::{Unapplied, unapplied};
