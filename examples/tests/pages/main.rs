//! The code of the documentation that needs the crate `testkit`. The file is not formatted: the
//! page is.

#[rustfmt::skip]
mod testing;
