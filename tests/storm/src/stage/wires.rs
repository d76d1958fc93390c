//! The proxies between processes and servers.
//!
//! Kafka's clients connect to the addresses that the broker announces. So Kafka gets one more
//! listener for each role, and announces it under the port of a proxy. The variable
//! `OUTBOX_KAFKA_PROXIED` holds pairs `listening:announced`, separated by commas, for relays,
//! consumers and workers, in this order.

use std::collections::BTreeMap;

use proxy::Proxy;

use super::Role;

/// A server, as a process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// PostgreSQL. There is no connection to a SQLite file.
    Database,
    /// The broker. The mock cluster has no wire.
    Broker,
}

/// All connections of one role to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// The role of the processes.
    pub role: Role,
    /// The server.
    pub peer: Peer,
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peer = match self.peer {
            Peer::Database => "database",
            Peer::Broker => "broker",
        };
        write!(f, "{}s–{peer}", self.role.as_str())
    }
}

/// The proxies, one for each wire. Producers have no wire to the broker.
#[derive(Debug, Default)]
pub struct Wires {
    /// The proxies in the order of their keys, so that random choices depend only on the seed.
    pub proxies: BTreeMap<Wire, Proxy>,
    /// The storm's own route to the producers' PostgreSQL. No fault disturbs it, and it follows the
    /// database after a promotion.
    pub own: Option<Proxy>,
}
