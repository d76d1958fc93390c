//! The databases and the broker that the demo runs on, its own or named by URL.
//!
//! | file | what it holds |
//! |---|---|
//! | `database.rs` | two databases or schemas: the producer's and the consumer's |
//! | `broker.rs` | topics, queues and where clients connect |
//! | `url.rs` | a broker's URL taken apart |

mod broker;
mod database;
mod url;

pub(crate) use broker::{Broker, BrokerSpec, Outage};
pub(crate) use database::{DatabaseSpec, Databases, Pool, on};
