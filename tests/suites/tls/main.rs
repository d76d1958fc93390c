//! Connections to brokers and databases over TLS: whom they trust, whom they refuse, and that
//! messages pass.
//!
//! `verifying` puts a server with a certificate of the test's choice in front of each service.
//! `services` uses the services' own TLS, which `cargo xtask services` sets up. `plaintext` shows
//! what is refused without TLS. `renewing` replaces certificates while they are in use.

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
