//! The parts that the demo and the storm share: processes that are kept running and killed, the
//! business of producers and consumers, what consumers write down, faults and their injector, and
//! readers of what is there in the end. Tests and benchmarks share Debezium.
//!
//! | module | what it holds |
//! |---|---|
//! | [`processes`] | processes: kept running, killed, started with other variables |
//! | [`faults`] | faults with their cures, a schedule of them from a seed, and their injector |
//! | [`workload`] | the business: accounts, rows with a message each, effects |
//! | [`payload`] | what a message says |
//! | [`journal`] | journals, and a subscription that writes down what it hands out |
//! | [`stores`] | databases, read with plain SQL |
//! | [`topic_reader`] | what the broker has, read with plain clients |
//! | [`connect`] | Debezium, in Kafka Connect |
//! | [`content`], [`clock`] | what all of them need |

pub mod clock;
pub mod connect;
pub mod content;
pub mod faults;
pub mod journal;
pub mod payload;
pub mod processes;
pub mod stores;
pub mod topic_reader;
pub mod workload;

/// Why something could not be done.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
