//! See [`fuzz::operator::edits`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::operator::edits(input));
