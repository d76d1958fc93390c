//! See [`fuzz::operator::urls`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::operator::urls(input));
