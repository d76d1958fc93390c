//! See [`fuzz::wire::rabbitmq`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::wire::rabbitmq(input));
