//! Every check of the project. What belongs to each change is the *gate*, `cargo xtask test`; what
//! is slow or depends on the clock is the *night*, `cargo xtask night`.
//!
//! | module | what it does |
//! |---|---|
//! | [`list`] | the table of all checks: where each one runs, and why |
//! | [`change`] | finds out whether a change touches documents alone |
//! | [`programs`] | builds the test programs and says where they are |
//! | [`suites`] | runs test programs and counts what they report |
//! | [`outcome`] | what a check found, in a file that crosses processes |
//! | [`runner`] | runs checks as processes of their own, several at once, each with a log |
//! | [`summary`] | the table, the reports of what failed, and the line that counts |
//! | [`gate`], [`night`], [`single`] | the commands `test`, `night` and `check` |

mod change;
pub(crate) mod gate;
mod list;
pub(crate) mod night;
mod outcome;
mod programs;
mod runner;
pub(crate) mod single;
mod suites;
mod summary;
