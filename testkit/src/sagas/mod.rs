//! A saga with a crash everywhere.
//!
//! | module | what it holds |
//! |---|---|
//! | `everywhere` | [`everywhere`], [`Everywhere`]: runs a saga with one fault after the other |
//! | `course` | one run with one fault, to its end |
//! | `faults` | the faults, and the worker that vanishes |
//! | `ends` | what each end must look like |

mod course;
mod ends;
mod everywhere;
mod faults;

pub use everywhere::{Everywhere, everywhere};
