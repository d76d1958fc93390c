//! See [`fuzz::storage::marks`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::storage::marks(input));
