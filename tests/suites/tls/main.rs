//! Connections to brokers and databases over TLS: the servers that they trust or refuse, and the
//! messages that pass over them.
//!
//! `verifying` puts a server with a certificate of the test's choice in front of each service.
//! `services` uses the services' own TLS, which `cargo xtask services` sets up. `plaintext` shows
//! the refusals without TLS. `renewing` replaces certificates while they are in use.

mod places;
mod plaintext;
mod renewing;
mod services;
mod verifying;

fn main() -> std::process::ExitCode {
    let mut trials = verifying::trials();
    trials.extend(services::trials());
    trials.extend(plaintext::trials());
    trials.extend(renewing::trials());
    tests::run(trials)
}
