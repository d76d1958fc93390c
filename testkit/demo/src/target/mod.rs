//! The databases and the broker of the demo, which are private or named by URL.
//!
//! | file | contents |
//! |---|---|
//! | `database.rs` | two databases or schemas: the producer's and the consumer's |
//! | `broker.rs` | topics, queues and the connections of clients |
//! | `url.rs` | parses a broker's URL |

mod broker;
mod database;
mod url;

pub(crate) use broker::{Broker, BrokerSpec, Outage};
pub(crate) use database::{DatabaseSpec, Databases, Pool, on};
