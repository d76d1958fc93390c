//! How messages leave.

use std::fmt;
use std::sync::Arc;

use message::{Connector, Transactions};

/// How messages leave a pipeline.
#[derive(Clone)]
#[non_exhaustive]
pub enum Publishing {
    /// Each by itself. One whose confirmation the relay did not store leaves again after a crash.
    Plain(Arc<dyn Connector>),
    /// In transactions of the broker, together with how far the relay has come: readers of
    /// committed messages see each once, whatever ends the process.
    InTransactions(Arc<dyn Transactions>),
}

impl Publishing {
    /// The broker's sessions.
    pub(crate) fn connector(&self) -> Arc<dyn Connector> {
        match self {
            Self::Plain(connector) => Arc::clone(connector),
            Self::InTransactions(transactions) => Arc::clone(transactions) as _,
        }
    }

    /// The broker's transactions, if messages leave in them.
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

/// A connector for transactions is none for this: its sessions refuse to begin, because nobody has
/// taken over. Name [`Publishing::InTransactions`].
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
