//! The proxies between processes and servers.
//!
//! Kafka's clients connect to the addresses that the broker announces. The storm therefore gives
//! Kafka one more listener per role, announced under the port of a proxy: the variable
//! `OUTBOX_KAFKA_PROXIED` holds pairs `listening:announced`, separated by commas, the first for
//! relays, the second for consumers.

use std::collections::BTreeMap;

use proxy::Proxy;

use super::Role;

/// A server, from the view of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// PostgreSQL. There is no wire to a file.
    Database,
    /// The broker. The mock cluster has no wire.
    Broker,
}

/// All connections of one role to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// Whose.
    pub role: Role,
    /// Whereto.
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

/// The proxies, one per wire. Producers have no wire to the broker.
#[derive(Debug, Default)]
pub struct Wires {
    /// In the order of their keys, so that chance depends on the seed alone.
    pub proxies: BTreeMap<Wire, Proxy>,
    /// The storm's own way to the producers' PostgreSQL, which nothing disturbs: it leads where
    /// they are.
    pub own: Option<Proxy>,
}
