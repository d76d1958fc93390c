//! Canaries in payloads, header values, passwords and keys. The tests provoke every error and
//! search all output; no canary may appear in it.

mod capture;
mod scene;

use tests::{Backend, trial};

fn main() -> std::process::ExitCode {
    capture::start();
    let on = |backend: Backend| {
        let name = format!("postgres/{backend}/no_secret_and_no_payload_is_told");
        trial(name, &[Backend::Postgres, backend], move |stage| scene::play(stage, backend))
    };
    let mut trials: Vec<_> = [Backend::Kafka, Backend::Rabbitmq, Backend::SqsFifo].map(on).into();
    trials.push(trial("a_leak_is_found_in_every_form", &[], scene::a_leak_is_found));
    tests::run(trials)
}
