//! See [`fuzz::storage::rows`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::storage::rows(input));
