//! Canaries in payloads, header values, passwords and keys. The tests provoke every error and
//! search all output; no canary may appear in it.

#![deny(dead_code, reason = "a case that no list names would never run")]

mod capture;
mod endpoint;
mod scene;

tests::cases! { "{on}/{case}":
    postgres kafka { no_secret_and_no_payload_is_told = scene::play }
    postgres rabbitmq { no_secret_and_no_payload_is_told = scene::play }
    postgres sqs_fifo { no_secret_and_no_payload_is_told = scene::play }
    postgres { no_secret_of_an_endpoint_is_told = endpoint::play }
    anywhere { a_leak_is_found_in_every_form = scene::a_leak_is_found }
}

fn main() -> std::process::ExitCode {
    capture::start();
    tests::run(trials())
}
