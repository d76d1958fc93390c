//! See [`fuzz::requests::responses`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::requests::responses(input));
