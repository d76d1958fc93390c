//! The code of the documentation, so that it compiles. Nothing runs it.
//!
//! A test (`xtask/tests/docs.rs`) finds each paragraph of code of the pages here or in another
//! example. The files are not formatted: the pages are.

#![allow(dead_code, unused_variables, clippy::all, reason = "this code is only compiled, and short")]

#[rustfmt::skip]
mod consumer;
#[rustfmt::skip]
mod fan_out;
#[rustfmt::skip]
mod idempotency_keys;
#[rustfmt::skip]
mod producer;
#[rustfmt::skip]
mod readme;
#[rustfmt::skip]
mod sagas;
#[rustfmt::skip]
mod tokens;
#[rustfmt::skip]
mod tracing;
