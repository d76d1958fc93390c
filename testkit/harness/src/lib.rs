//! The parts that the demo and the storm share: processes that are kept running and killed, the
//! workload of producers and consumers, journals, faults and their injector, plain clients of the
//! brokers, and readers of the final state. Debezium is for tests and benchmarks.
//!
//! | module | contents |
//! |---|---|
//! | [`processes`] | processes: kept running, killed, restarted with other variables |
//! | [`faults`] | faults with their cures, schedules of them from a seed, and their injector |
//! | [`workload`] | the business: accounts, rows with one message each, effects |
//! | [`payload`] | the payload of a message |
//! | [`journal`] | journals, and a subscription that records its deliveries |
//! | [`stores`] | databases, read with plain SQL |
//! | [`plain`] | plain clients of the brokers, without the toolkit's adapters |
//! | [`topic_reader`] | the broker's content as the checker compares it, read with plain clients |
//! | [`watched`] | a connector that shows each message and each answer, for tests and benchmarks |
//! | [`connect`] | Debezium, in Kafka Connect |
//! | [`content`], [`clock`] | shared by all of them |

pub mod clock;
pub mod connect;
pub mod content;
pub mod faults;
pub mod journal;
pub mod payload;
pub mod plain;
pub mod processes;
pub mod stores;
pub mod topic_reader;
pub mod watched;
pub mod workload;

/// The error of anything that fails.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
