//! Errors about a node's number.

use message::{Fault, OutOfBounds};
use migrations::SqlErrorKind;

/// Why a node has no number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The lease is out of bounds.
    #[error(transparent)]
    Lease(#[from] OutOfBounds),
    /// The holder's name is empty or too long.
    #[error("the name of the holder has {bytes} bytes; give it 1 to 240")]
    Holder {
        /// Its length in bytes.
        bytes: usize,
    },
    /// All 65,536 numbers are held, or used up.
    #[error(
        "all 65,536 node numbers are held; run fewer processes that generate ids; outbox_node lists the \
         holders"
    )]
    AllTaken,
    /// The database returned a number or an epoch that does not fit.
    #[error(
        "the database returned number {number} with epoch {epoch}, which does not fit into an id; repair \
         outbox_node"
    )]
    Corrupt {
        /// The number.
        number: i64,
        /// Its epoch.
        epoch: i64,
    },
    /// The database refused the statement or became unavailable.
    #[error(
        "the database could not {what} (`relay migrate up --line outbox` creates the table, `relay migrate \
         roles` the rights)"
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

    /// Returns the party at fault: the database ([`Fault::Broker`]: wait and retry) or the
    /// operator.
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
