//! See [`fuzz::names::names`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::names::names(input));
