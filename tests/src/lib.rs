//! The shared parts of the conformance suites and the end-to-end tests: real components, and for
//! each test its own database, topics and processes, all removed afterwards.
//!
//! | module | contents |
//! |---|---|
//! | [`backends`] | [`Backend`]: the components that tests run against, and whether this run has them |
//! | [`trial`](mod@trial) | [`trial()`], [`run()`]: one test with a deadline, listed as ignored when a backend is missing |
//! | [`cases`](mod@cases) | [`cases!`]: the lists of cases |
//! | [`stage`] | [`Stage`]: resources of a test, and the evidence that it shows when it fails |
//! | [`eventually`](mod@eventually) | [`eventually()`]: waits for a condition, never for a fixed time |
//! | [`cluster`] | [`Cluster`]: a PostgreSQL server of the test's own, which it may crash, copy and promote |
//! | [`counters`] | [`Counters`]: the metrics that the components report |
//! | [`issuer`] | a token endpoint, and tokens that the services' Kafka accepts |
//! | [`kafka_requests`] | bandwidth limits and passwords of Kafka, for names of the test's own |
//! | [`kafka_server`] | a Kafka server of the test's own, behind a port that the test holds |
//! | [`log`] | the log of this process |
//! | [`copies`] | new databases, copied from a migrated one, and their removal |
//! | [`databases`] | [`Database`]: a migrated database of the test's own |
//! | [`brokers`] | [`Broker`]: topics, publishers, subscriptions and a plain client of every broker |
//! | [`roles`] | the users of least privilege that the suites run under on PostgreSQL |
//! | [`services`] | restarts of services in the middle of a test |
//! | [`rabbitmq_node`] | RabbitMQ nodes of a test's own: two of one cluster, one that accepts tokens, or one with a memory alarm |
//! | [`relay_process`] | [`RelayProcess`]: the real `relay` program as a child |
//! | [`terminal`] | the program on a terminal of the test's own |
//! | [`build`] | programs of the workspace that tests start |
//! | [`workload`] | a producer and a consumer whose effects can be counted |
//! | [`facts`] | the numbered facts that tests send and apply, and the verdict of the checker; pure |
//! | [`hostile`] | names that no setting may accept |
//! | [`pairs`] | rows of settings in which every two of them meet; pure |
//! | [`log_capture`] | the statements that a client sends to PostgreSQL, recorded on the wire |
//! | [`tls`] | an authority of the test's own, and servers that speak TLS before a service |

pub mod backends;
pub mod brokers;
pub mod build;
pub mod cases;
pub mod cluster;
pub mod collector;
pub mod copies;
pub mod counters;
pub mod databases;
pub mod issuer;
pub mod kafka_requests;
pub mod kafka_server;
pub mod log;
pub mod log_capture;
pub mod pairs;
pub mod rabbitmq_node;
pub mod relay_process;
pub mod roles;
pub mod services;
pub mod stage;
pub mod terminal;
pub mod tls;
pub mod trial;
pub mod workload;

pub mod eventually {
    //! Waiting for a condition, never for a fixed time.
    pub use conformance::{eventually, when};
}

pub use backends::Backend;
pub use brokers::Broker;
pub use cluster::Cluster;
pub use conformance::{Failure, Outcome, eventually, facts, hostile};
pub use counters::Counters;
pub use databases::{Database, Dialect, drop_a_begin};
pub use relay_process::RelayProcess;
pub use roles::Role;
pub use stage::Stage;
pub use trial::{run, trial};
