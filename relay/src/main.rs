//! The relay command.
fn main() {}
