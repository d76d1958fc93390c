//! Publishing in transactions, each with a mark of how far the relay has come.
//!
//! | file | what is in it |
//! |---|---|
//! | `connector.rs` | [`TransactionalConnector`]: takes over, connects, commits |
//! | `opening.rs` | fences off the previous session and opens the next |
//! | `session.rs` | two producers that take turns |
//! | `publisher.rs` | the engine's end of a session |
//! | `worker.rs` | the thread that owns a producer and its open transaction |
//! | `leaders.rs` | which partitions a batch must not add to a transaction |
//! | `pace.rs` | how many messages a transaction takes |
//! | `deliveries.rs` | the outcome of each record of a batch |
//! | `marks.rs` | the topic of the marks, and the last one in it |
//! | `inspect.rs` | what transactions depend on in the cluster |
//! | `probe.rs` | whether this user may begin transactions |
//! | `parts.rs` | cuts a mark into records and reassembles it |
//! | `crash_points.rs` | places at which a test ends the process |
//!
//! **Rules.** A batch is confirmed when the brokers have all its records. Otherwise it is refused
//! as a whole, so nothing acts upon half a transaction. With its first failure a producer is
//! abandoned. The next one begins with `init_transactions`, which ends the transaction that was
//! left open and fences off the previous producer. The outcome of a commit without an answer is
//! unknown: only the last mark shows it. librdkafka up to 2.15 has no KIP-890, so a producer is
//! never used after such an end.

mod connector;
pub mod crash_points;
mod deliveries;
mod inspect;
mod leaders;
mod marks;
mod opening;
mod pace;
mod parts;
mod probe;
mod publisher;
mod session;
mod worker;

pub use connector::TransactionalConnector;
pub use inspect::{STATE_TOPIC, TransactionFacts, inspect_transactions, marks_topic};

#[cfg(test)]
mod tests;
