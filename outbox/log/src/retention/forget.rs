//! Reasons not to forget a relay.

use crate::LogError;

/// Why a relay is not forgotten. Nothing was changed, except that some of the parked entries to
/// discard may already be discarded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// No such relay exists.
    #[error("no relay named {relay:?} has ever read this outbox")]
    Unknown {
        /// Its name.
        relay: String,
    },
    /// Its lease has not expired yet.
    #[error("relay {relay:?} is led by {holder}; stop it first")]
    Leading {
        /// Its name.
        relay: String,
        /// The holder of the lease.
        holder: String,
        /// The number of its parked entries that this call had discarded by then.
        discarded: u64,
    },
    /// Entries are parked for this relay.
    #[error("{entries} messages are parked for relay {relay:?} and would never be published")]
    Parked {
        /// Its name.
        relay: String,
        /// Number of parked entries.
        entries: u64,
    },
    /// The database could not answer.
    #[error(transparent)]
    Log(#[from] LogError),
}
