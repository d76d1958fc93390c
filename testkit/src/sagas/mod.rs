//! A saga with a crash at every point.
//!
//! | module | contents |
//! |---|---|
//! | `everywhere` | [`everywhere`], `everywhere_on`, [`Everywhere`]: runs a saga with one fault at a time |
//! | `course` | one run with one fault, from start to end |
//! | `faults` | the faults of a run, such as a worker that disappears |
//! | `ends` | the end of a saga, and the comparison of two ends |

mod course;
mod ends;
mod everywhere;
mod faults;

#[cfg(feature = "postgres")]
pub use everywhere::everywhere_on;
pub use everywhere::{Everywhere, everywhere};
