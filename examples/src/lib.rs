//! Services built on the toolkit; the tests run them.
