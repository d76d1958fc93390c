//! Publishing in transactions, each with a mark of how far the relay has come.
//!
//! | file | what is in it |
//! |---|---|
//! | `connector.rs` | [`TransactionalConnector`]: takes over, connects, commits |
//! | `opening.rs` | shuts out the session before, and begins the next |
//! | `session.rs` | two producers that take turns |
//! | `publisher.rs` | the engine's end of a session |
//! | `worker.rs` | the thread that owns a producer and its open transaction |
//! | `pace.rs` | how many messages a transaction takes |
//! | `deliveries.rs` | what became of each record of a batch |
//! | `marks.rs` | the topic of the marks, and the last one in it |
//! | `inspect.rs` | what transactions rest on in the cluster |
//! | `probe.rs` | whether this user may begin transactions |
//! | `parts.rs` | a mark cut into records and put together again |
//! | `crash_points.rs` | places at which a test ends the process |
//!
//! **Rules.** A batch is confirmed when the brokers have every record of it, and is refused as a
//! whole otherwise: so nobody acts upon half a transaction. With the first failure a producer is
//! given up; the next one begins with `init_transactions`, which ends what was left open and shuts
//! out the producer before. A commit whose answer is missing is unknown: only the last mark tells.
//! librdkafka up to 2.15 has no KIP-890, so a producer is never used after such an end.

mod connector;
pub mod crash_points;
mod deliveries;
mod inspect;
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
