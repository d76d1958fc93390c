//! See [`fuzz::wire::kafka`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::kafka(input));
