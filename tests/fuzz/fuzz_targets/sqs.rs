//! See [`fuzz::wire::sqs`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::sqs(input));
