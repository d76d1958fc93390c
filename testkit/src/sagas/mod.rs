//! A saga with a crash everywhere.
//!
//! | module | what it holds |
//! |---|---|
//! | `everywhere` | [`everywhere`], [`Everywhere`]: runs a saga with one fault after the other |
//! | `course` | one run with one fault, to its end |
//! | `faults` | the faults, and the worker that vanishes |
//! | `judge` | what each end must look like |

mod course;
mod everywhere;
mod faults;
mod judge;

pub use everywhere::{Everywhere, everywhere};
