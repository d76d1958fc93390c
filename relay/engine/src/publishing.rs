//! The ways in which a pipeline publishes messages.

use std::fmt;
use std::sync::Arc;

use message::{Connector, Transactions};

/// The way in which a pipeline publishes messages.
#[derive(Clone)]
#[non_exhaustive]
pub enum Publishing {
    /// Each message separately. After a crash, a message whose confirmation was not stored is
    /// published again.
    Plain(Arc<dyn Connector>),
    /// In broker transactions that also record how far the relay has come. Readers of committed
    /// messages see each message once, however the process ends.
    InTransactions(Arc<dyn Transactions>),
}

impl Publishing {
    /// Returns the connector to the broker.
    #[must_use]
    pub fn connector(&self) -> Arc<dyn Connector> {
        match self {
            Self::Plain(connector) => Arc::clone(connector),
            Self::InTransactions(transactions) => Arc::clone(transactions) as _,
        }
    }

    /// Returns the broker's transactions, if messages are published in them.
    pub(crate) fn transactions(&self) -> Option<&Arc<dyn Transactions>> {
        match self {
            Self::Plain(_) => None,
            Self::InTransactions(transactions) => Some(transactions),
        }
    }
}

impl fmt::Debug for Publishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.transactions().is_some() { "InTransactions" } else { "Plain" };
        f.debug_tuple(name).field(&self.connector().destination()).finish()
    }
}

impl From<Arc<dyn Connector>> for Publishing {
    fn from(connector: Arc<dyn Connector>) -> Self {
        Self::Plain(connector)
    }
}

/// Not for a connector that implements [`Transactions`]: its sessions would refuse to begin,
/// because no takeover has happened. Such a connector needs [`Publishing::InTransactions`].
impl<C: Connector + 'static> From<Arc<C>> for Publishing {
    fn from(connector: Arc<C>) -> Self {
        Self::Plain(connector)
    }
}

impl From<Arc<dyn Transactions>> for Publishing {
    fn from(transactions: Arc<dyn Transactions>) -> Self {
        Self::InTransactions(transactions)
    }
}
