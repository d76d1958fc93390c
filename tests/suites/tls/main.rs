//! Connections to brokers and databases over TLS: the servers that they trust or refuse, and the
//! messages that pass over them.
//!
//! `verifying` puts a server with a certificate of the test's choice in front of each service.
//! `services` uses the services' own TLS, which `cargo xtask services` sets up. `plaintext` shows
//! the refusals without TLS. `renewing` replaces certificates while they are in use, `passwords`
//! the passwords of Kafka. `tokens` logs in to Kafka with access tokens, `web_identity` to SQS.

#![deny(dead_code, reason = "a case that no list names would never run")]

mod passwords;
mod places;
mod plaintext;
mod renewing;
mod services;
mod tokens;
mod verifying;
mod web_identity;

tests::cases! {
    modules { passwords, plaintext, renewing, services, tokens, verifying, web_identity }
}

fn main() -> std::process::ExitCode {
    tests::run(trials())
}
