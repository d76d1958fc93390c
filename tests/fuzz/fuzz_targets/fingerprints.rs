//! See [`fuzz::requests::fingerprints`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::requests::fingerprints(input));
