//! Why a relay is not forgotten.

use crate::log::LogError;

/// Why a relay is not forgotten; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// There is no such relay.
    #[error("no relay named {relay:?} has ever read this outbox")]
    Unknown {
        /// Its name.
        relay: String,
    },
    /// Its lease has not expired.
    #[error("relay {relay:?} is led by {holder}; stop it first")]
    Leading {
        /// Its name.
        relay: String,
        /// Who holds the lease.
        holder: String,
    },
    /// Entries are parked for it.
    #[error("{entries} messages are parked for relay {relay:?} and would never be published")]
    Parked {
        /// Its name.
        relay: String,
        /// How many.
        entries: u64,
    },
    /// The database could not be asked.
    #[error(transparent)]
    Log(#[from] LogError),
}
