//! See [`fuzz::requests::keys`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::requests::keys(input));
