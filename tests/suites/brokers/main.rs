//! The contracts of every publisher and of every subscription: one trial per case and broker. The
//! cases are those of the crate `conformance`, which adapters of other people pass too; and:
//!
//! | module | what it holds |
//! |---|---|
//! | [`target`], [`harness`] | the brokers as data, and as the crate `conformance` wants them |
//! | [`connecting`] | silent servers and wrong credentials |
//! | [`wire`] | every field of `docs/wire.md`, as a plain client of each broker sees it |
//! | [`foreign`] | what foreign producers and other libraries send, as effects or dead letters of an inbox |
//! | [`record_time`] | the time of a Kafka record, by which Kafka deletes it |
//! | [`queues`] | which queue of SQS a topic leads to |
//! | [`kafka_group`] | what a member of a real Kafka group relies on: pauses, rebalances, lost sessions, beginnings |
//! | [`transactions`] | what a reader of committed records sees of Kafka's transactions, and what marks are found |
//! | [`exactly_once`] | a whole relay that publishes in transactions, killed and stopped |
//! | [`quorum`] | what RabbitMQ's quorum queues count against a message |
//! | [`rabbitmq`] | several queues at once, streams, permissions that are withdrawn |
//! | [`sqs`] | what the shared harness does not have: plain SQS |

mod connecting;
mod exactly_once;
mod foreign;
mod harness;
mod kafka_group;
mod queues;
mod quorum;
mod rabbitmq;
mod record_time;
mod sqs;
mod target;
mod transactions;
mod wire;

fn main() -> std::process::ExitCode {
    if let Some(ended) = exactly_once::relay() {
        return ended;
    }
    tests::log::keep("off,brokers=error");
    // A relay that is killed and stopped for as long as its lease lasts, minutes together; broker
    // transactions that time out while the machine is busy.
    let at_night = [exactly_once::trials(), transactions::trials()].into_iter().flatten();
    let at_night = tests::trial::at_night(at_night.collect());
    let trials = [
        target::trials(),
        connecting::trials(),
        wire::trials(),
        foreign::trials(),
        record_time::trials(),
        queues::trials(),
        quorum::trials(),
        rabbitmq::trials(),
        kafka_group::trials(),
        at_night,
    ];
    tests::run(trials.into_iter().flatten().collect())
}
