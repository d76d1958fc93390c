//! Every check of the project. Checks that belong to each change are the *gate*,
//! `cargo xtask test`. Checks that are slow or depend on the clock are the *night*,
//! `cargo xtask night`.
//!
//! | module | what it does |
//! |---|---|
//! | [`list`] | the table of all checks: where each one runs, and why |
//! | [`change`] | finds out whether a change touches only documents |
//! | [`programs`] | builds the test programs and says where they are |
//! | [`suites`] | runs test programs and counts what they report |
//! | [`memory`] | a folder in memory for the files of the gate's tests |
//! | [`outcome`] | the outcome of a check, in a file that crosses processes |
//! | [`results`] | the outcomes of the checks of a run, in a file that a later run continues |
//! | [`runner`] | runs checks as processes of their own, several at once, each with a log |
//! | [`summary`] | the table, the reports of failures, and the line with the counts |
//! | [`gate`], [`night`], [`single`] | the commands `test`, `night` and `check` |

mod change;
pub(crate) mod gate;
mod list;
mod memory;
pub(crate) mod night;
mod outcome;
mod programs;
mod results;
mod runner;
pub(crate) mod single;
mod suites;
mod summary;
