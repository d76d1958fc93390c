//! The code of the documentation that needs the crate `testkit`. The files are not formatted: the
//! page is.

#[rustfmt::skip]
mod testing;

#[rustfmt::skip]
#[allow(dead_code, reason = "the suite `conformance` runs it, because it needs a server")]
mod testing_on_postgres;
