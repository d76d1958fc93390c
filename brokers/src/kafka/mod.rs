//! Apache Kafka, through librdkafka.
mod admin;
mod config;
mod connector;
mod fault;
mod group;
mod inflow;
mod ledger;
pub mod mock;
mod opening;
mod outcomes;
mod partitioner;
mod properties;
mod publisher;
mod pump;
mod session;
mod subscriber;
mod subscription;
mod suspects;
#[cfg(test)]
mod tests;
mod topics;
mod wire;

pub use admin::{Admin, AdminError, TopicPlan};
pub use config::{Compression, Config, Mechanism, Sasl};
pub use connector::Connector;
pub use group::{GroupConfig, Partition, Start};
pub use publisher::Publisher;
pub use subscriber::Subscriber;
pub use subscription::Subscription;
