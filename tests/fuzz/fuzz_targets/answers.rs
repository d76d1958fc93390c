//! See [`fuzz::wire::answers`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::answers(input));
