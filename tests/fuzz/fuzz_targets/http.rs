//! See [`fuzz::wire::http`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::http(input));
