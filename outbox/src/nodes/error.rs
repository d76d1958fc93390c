//! Errors about the number of a node.

use std::time::Duration;

use message::Fault;

use super::options::{NODE_LEASE_MAX, NODE_LEASE_MIN};
use migrations::SqlErrorKind;

/// Why a node has no number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The lease is out of its bounds.
    #[error("the lease of {value:?} is out of bounds; choose {NODE_LEASE_MIN:?} to {NODE_LEASE_MAX:?}")]
    Lease {
        /// Its value.
        value: Duration,
    },
    /// The holder has no name, or too long a one.
    #[error("the name of the holder has {bytes} bytes; give it 1 to 255")]
    Holder {
        /// Its length.
        bytes: usize,
    },
    /// All 65,536 numbers are held, or used up.
    #[error(
        "all 65,536 node numbers are held; let fewer processes make ids, or see in outbox_node who holds them"
    )]
    AllTaken,
    /// The database gave something that is no number of a node.
    #[error(
        "the database gave number {number} with epoch {epoch}, which do not fit an id; repair outbox_node"
    )]
    Corrupt {
        /// The number.
        number: i64,
        /// Its epoch.
        epoch: i64,
    },
    /// The database refused or is away.
    #[error(
        "the database could not {what} (the table is made by `relay migrate up --line outbox`, the rights by `relay \
         migrate roles`)"
    )]
    Database {
        /// The step that failed.
        what: &'static str,
        /// The client library's error.
        #[source]
        source: sqlx::Error,
    },
    /// The node was closed.
    #[error("the node was closed")]
    Closed,
}

impl NodeError {
    pub(super) fn during(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { what, source }
    }

    /// Whose fault it is: the database's ([`Fault::Broker`]: wait and try again) or the operator's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Database { source, .. } if SqlErrorKind::of(source) != SqlErrorKind::Refused => {
                Fault::Broker
            }
            _ => Fault::Operator,
        }
    }
}
