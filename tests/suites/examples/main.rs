//! The example programs, run as a user runs them. Their output must match their documentation.
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | building and running an example |
//! | [`client`] | an HTTP client |
//! | [`provider`] | a payment provider that honours idempotency keys |
//! | [`producing`] | the order service, the embedded relay and its page, plain SQL |
//! | [`placed`] | placed orders and a relay that publishes them, for the examples that consume |
//! | [`billing`] | the path from the order service to an invoice, over every broker |
//! | [`payments`] | a consumer whose effect is in another system, killed in the middle |
//! | [`quick_start`] | the program of docs/quick-start.md, everything in one service; the document, line by line |
//! | [`document`] | a document whose commands are run as written |
//! | [`orders_api`] | a web service whose requests are repeated |
//! | [`accounts`] | events of aggregates that leave as messages, with cqrs-es |
//! | [`orders_grpc`] | a gRPC service whose calls are repeated |
//! | [`webhook_receiver`] | a web service that a relay posts to, killed before it answers |
//! | [`checkout`] | a saga over three services, one of them in Python, killed at every point |

#![deny(dead_code, reason = "a case that no list names would never run")]

mod accounts;
mod billing;
mod checkout;
mod client;
mod document;
mod orders_api;
mod orders_grpc;
mod payments;
mod placed;
mod producing;
mod program;
mod provider;
mod quick_start;
mod webhook_receiver;

tests::cases! {
    night modules {
        accounts, billing, checkout, orders_api, orders_grpc, payments, producing, quick_start,
        webhook_receiver
    }
}

fn main() -> std::process::ExitCode {
    tests::run(trials())
}
