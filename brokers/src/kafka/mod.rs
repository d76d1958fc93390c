//! Apache Kafka, through librdkafka.
mod admin;
mod config;
mod connector;
mod fault;
pub mod mock;
mod opening;
mod outcomes;
mod partitioner;
mod properties;
mod publisher;
mod session;
mod suspects;
#[cfg(test)]
mod tests;
mod topics;
mod wire;

pub use admin::{Admin, AdminError, TopicPlan};
pub use config::{Compression, Config, Mechanism, Sasl};
pub use connector::Connector;
pub use publisher::Publisher;
