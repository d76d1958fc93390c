//! From the producer's transaction to the consumer's effect, with the real `relay` program between
//! them.
//!
//! Every case runs on PostgreSQL with each broker, and on SQLite with librdkafka's mock cluster.

#![deny(dead_code, reason = "a case that no list names would never run")]

mod chunks;
mod commands;
mod configuration;
mod crashes;
mod delivery;
mod environments;
mod fan_out;
mod holding;
mod inbox_dead;
mod keys;
mod lag;
mod late_topic;
mod leadership;
mod log_readers;
mod memory;
mod observability;
mod page;
mod rotation;
mod sagas;
mod servers;
mod silence;
mod sizes;
mod sqs_time;
mod starting;
mod tracing;
mod verify;
mod webhooks;

// The gate has one path from producer to consumer over every broker, crashes and holds on that
// path, and the messages of a first start. The cases of the night wait for whole seconds, or need a
// browser, a collector or a connector.
tests::cases! {
    modules { chunks, commands, configuration, crashes, delivery, holding, leadership, sizes, webhooks }
    night modules {
        environments, fan_out, inbox_dead, keys, lag, late_topic, log_readers, memory, observability,
        page, rotation, sagas, servers, silence, sqs_time, starting, tracing, verify,
    }
}

fn main() -> std::process::ExitCode {
    if let Some(ended) = memory::consumer() {
        return ended;
    }
    tests::run(trials())
}
