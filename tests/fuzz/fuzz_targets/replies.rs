//! See [`fuzz::replies::replies`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::replies::replies(input));
