//! Transactional outbox and inbox: effects that happen exactly once, end to end.
//!
//! A producer writes business rows and messages in one transaction. A relay publishes every
//! committed message to Kafka, RabbitMQ, SQS or HTTP endpoints, under a stable id. A consumer
//! records that id in the transaction of its effect. So every effect happens once, despite
//! crashes, retries, replays and redelivery.
//!
//! Begin with [`prelude`]. Everything else is in the crates below, which this one joins:
//!
//! | module | what it holds | feature |
//! |---|---|---|
//! | [`prelude`] | the names that producers and consumers use | |
//! | [`outbox`] | enqueue in the caller's transaction | |
//! | [`inbox`] | the guard, the consumer, dead letters | |
//! | [`message`] | the envelope, ids, headers, the traits of brokers | |
//! | [`migrations`] | the tables, in versioned lines; [`migrate()`] brings them up to date | |
//! | `keys`, `http` | idempotency keys, and the tower layer for them | the same names |
//! | `kafka`, `rabbitmq`, `sqs`, `memory` | brokers | the same names |
//! | `Tls`, `oauth` | TLS to a broker; access tokens for Kafka, also from a provider of the service | those of the brokers |
//! | `webhooks` | HTTP endpoints as a destination, and what a receiver of their requests needs | `webhooks` |
//! | `Relay`, `RelayHealth`, `Filter` | a relay inside a service, its health, and a filter for its messages | `relay` |
//! | `RelayPage`, `PageOptions`, `Operator` | the page for operators of that relay, behind the service's own login | `page` |
//! | `outbox_log` | the log that a relay reads: status, single entries, retention | `relay` |
//! | `saga` | operations over several services, as async functions | `saga` |
//! | `otel` | spans of producers and consumers in one trace of OpenTelemetry | `otel` |
//! | `testkit` | a pipeline in one process, with faults on demand, on SQLite or PostgreSQL | `testkit` |
//!
//! Databases are features too: `postgres` (the default) and `sqlite`.

mod migrate;
#[cfg(feature = "otel")]
pub mod otel;
#[cfg(feature = "page")]
mod page;
pub mod prelude;
#[cfg(feature = "relay")]
mod relay;
#[cfg(feature = "relay")]
mod relay_health;
#[cfg(feature = "page")]
mod shown;
mod shutdown;

#[cfg(feature = "relay")]
pub use ::engine::{Filter, InvalidFilter, Role as RelayRole, Rule, Status as RelayStatus};
#[cfg(feature = "keys")]
pub use ::idempotency as keys;
#[cfg(feature = "http")]
pub use ::idempotency::http;
#[cfg(feature = "page")]
pub use ::operate::{Operator, Role as OperatorRole};
pub use ::outbox::{pool, pool_options, pool_with};
#[cfg(feature = "relay")]
pub use ::outbox_log;
#[cfg(feature = "saga")]
pub use ::saga;
#[cfg(any(feature = "kafka", feature = "rabbitmq", feature = "sqs", feature = "webhooks"))]
pub use brokers::Tls;
#[cfg(feature = "webhooks")]
pub use brokers::http as webhooks;
#[cfg(feature = "kafka")]
pub use brokers::kafka;
#[cfg(feature = "memory")]
pub use brokers::memory;
#[cfg(feature = "kafka")]
pub use brokers::oauth;
#[cfg(feature = "rabbitmq")]
pub use brokers::rabbitmq;
#[cfg(feature = "sqs")]
pub use brokers::sqs;
pub use migrate::migrate;
#[cfg(feature = "relay")]
pub use relay::{BuildRelayError, Relay, RelayBuilder};
#[cfg(feature = "relay")]
pub use relay_health::RelayHealth;
pub use shutdown::shutdown_signal;
#[cfg(feature = "testkit")]
pub use testkit;
#[cfg(feature = "page")]
pub use web::{BuildPageError, PageBody, PageOptions, RelayPage};
pub use {::inbox, ::message, ::migrations, ::outbox};
