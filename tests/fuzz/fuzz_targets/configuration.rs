//! See [`fuzz::operator::configuration`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::operator::configuration(input));
