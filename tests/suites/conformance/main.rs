//! The promises of the two database seams, on PostgreSQL and SQLite. The suites cover producers,
//! the log that relays read, leases and exceptions, migrations, the guard, dead letters, retention,
//! the consumer runner, idempotency keys, sagas and the test kit.
//!
//! The broker seams have their own binary, `brokers`.

#![deny(dead_code, reason = "a case that no list names would never run")]

mod audit;
mod audits;
mod begun;
mod bulk;
mod clocks;
mod doctor;
mod durability;
mod features;
mod inbox;
mod keys;
mod kit;
mod outbox;
mod page;
mod proxied;
mod release;
mod sagas;
mod statistics;
mod synchronous;
mod vanished;
mod versions;

tests::cases! {
    modules {
        audit, audits, bulk, clocks, doctor, features, inbox, keys, kit, outbox, page, release, sagas,
        statistics, synchronous, vanished, versions,
    }
    night modules { durability }
}

fn main() -> std::process::ExitCode {
    tests::log::keep("off,idempotency=info,inbox=info");
    tests::run(trials())
}
