//! What the relay relies on in every publisher, and what consumers rely on in every subscription: one trial per case
//! and broker.
//!
//! | module | what it holds |
//! |---|---|
//! | [`publisher`] | receipts, order, refusals, the end of a session, connecting |
//! | [`wire`] | every field of `docs/wire.md`, as a plain client of each broker sees it |
//! | [`subscription`] | settling, releasing, sharing, dropped calls, malformed records |
//! | [`kafka_group`] | what a member of a real Kafka group relies on: pauses, rebalances, lost sessions, beginnings |
//! | [`quorum`] | what RabbitMQ's quorum queues count against a message |
//! | [`target`] | the brokers as data |
//! | [`session`], [`relaying`] | a publishing session that counts receipts; submitting as the relay does |
//! | [`consuming`] | receiving and settling as a consumer does |
//! | [`sample`] | the messages |
//! | [`sqs`] | what the shared harness does not have: plain SQS |

mod consuming;
mod kafka_group;
mod publisher;
mod quorum;
mod relaying;
mod sample;
mod session;
mod sqs;
mod subscription;
mod target;
mod wire;

fn main() -> std::process::ExitCode {
    let trials = [
        publisher::trials(),
        wire::trials(),
        subscription::trials(),
        quorum::trials(),
        kafka_group::trials(),
    ];
    tests::run(trials.into_iter().flatten().collect())
}
