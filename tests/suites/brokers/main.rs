//! The contracts of every publisher and of every subscription: one trial for each case and broker.
//! The shared cases come from the crate `conformance`, which third-party adapters run as well. The
//! rest are here:
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | the brokers as data, with the shared cases |
//! | [`alarm`] | a memory alarm of RabbitMQ, during which it accepts no messages |
//! | [`connecting`] | silent servers and wrong credentials |
//! | [`wire`] | every field of `docs/wire.md`, as a plain client of each broker sees it |
//! | [`foreign`] | messages of foreign producers and other libraries, as effects or dead letters of an inbox |
//! | [`record_time`] | the timestamp of a Kafka record, which decides when Kafka deletes it |
//! | [`nodes`] | URLs that name two nodes of a RabbitMQ cluster, one of which stops |
//! | [`queues`] | the SQS queue that a topic maps to |
//! | [`kafka_group`] | promises to a member of a real Kafka group: pauses, rebalances, lost sessions, its start |
//! | [`kafka_quota`] | clients of Kafka that a quota slows down |
//! | [`transactions`] | Kafka's transactions as a reader of committed records sees them, and the marks that are found |
//! | [`exactly_once`] | a whole relay that publishes in transactions, killed and stopped |
//! | [`quorum`] | deliveries that RabbitMQ's quorum queues count |
//! | [`rabbitmq`] | several queues at once, streams, permissions that are withdrawn |
//! | [`resubscribing`] | order per key when a RabbitMQ consumer drops its session and subscribes again |
//! | [`standby`] | order per key with RabbitMQ's single active consumer, when the active one ends |
//! | [`tokens`] | RabbitMQ behind tokens of OAuth 2, which expire |
//! | [`sqs`] | the settings of SQS's adapter, for cases that need more than the shared brokers offer |

#![deny(dead_code, reason = "a case that no list names would never run")]

mod alarm;
mod connecting;
mod exactly_once;
mod foreign;
mod kafka_group;
mod kafka_quota;
mod nodes;
mod queues;
mod quorum;
mod rabbitmq;
mod record_time;
mod resubscribing;
mod sqs;
mod standby;
mod target;
mod tokens;
mod transactions;
mod wire;

tests::cases! {
    modules {
        alarm, connecting, foreign, kafka_group, kafka_quota, nodes, queues, quorum, rabbitmq, record_time,
        resubscribing, standby, target, tokens, wire,
    }
    // These take minutes: relays are killed, or stopped for as long as their lease lasts, and
    // broker transactions time out on a busy machine.
    night modules { exactly_once, transactions }
}

fn main() -> std::process::ExitCode {
    if let Some(ended) = exactly_once::relay() {
        return ended;
    }
    tests::log::keep("off,brokers=error");
    tests::run(trials())
}
