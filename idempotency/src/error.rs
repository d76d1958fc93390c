//! Errors of idempotency keys.

use message::token::Drift;
use message::{Fault, InvalidId, OutOfBounds};
use migrations::MigrateError;
use outbox::StoreError;
use time::OffsetDateTime;

use crate::record::Ending;

/// Why a key was not claimed, or the tables not opened. Nothing was run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// An option is out of bounds.
    #[error(transparent)]
    Option(#[from] OutOfBounds),
    /// The operation accepts only tokens as keys, and this is not one. The caller's fault.
    #[error(transparent)]
    NotAToken(InvalidId),
    /// The key has no record, and its time is in the future or so old that its record may have
    /// expired. The caller's fault.
    #[error(transparent)]
    Drift(Drift),
    /// The tables are missing or do not match this build.
    #[error(transparent)]
    Schema(#[from] MigrateError),
    /// The database refused or was unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ClaimError {
    /// Returns the party at fault: the caller ([`Fault::Message`]), the infrastructure
    /// ([`Fault::Broker`]: try again) or the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotAToken(_) | Self::Drift(_) => Fault::Message,
            Self::Schema(MigrateError::Database { .. }) => Fault::Broker,
            Self::Option(_) | Self::Schema(_) => Fault::Operator,
            Self::Store(error) => error.fault(),
        }
    }
}

/// Why the outcome of a request was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The holder was too late: its lease had expired, and another holder has the key. Nothing was
    /// changed.
    #[error("the key was taken over as attempt {attempt}; this holder's outcome is not stored")]
    TakenOver {
        /// The attempt that has it.
        attempt: u32,
    },
    /// The holder was too late: the key already has an outcome, or an operator has decided about
    /// it. Nothing was changed.
    #[error("the key already ended at {processed_at}; this holder's outcome is not stored")]
    Ended {
        /// How the request ended.
        ending: Ending,
        /// When, by the database's clock.
        processed_at: OffsetDateTime,
    },
    /// The holder was too late: the key was released, or is no longer known. Nothing was changed.
    #[error("the key is no longer held; this holder's outcome is not stored")]
    NotHeld,
    /// The database refused or was unavailable. It is unknown whether the outcome is stored; the
    /// lease will expire.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CompleteError {
    /// Returns whether another holder has, or had, the key meanwhile.
    #[must_use]
    pub fn is_late(&self) -> bool {
        !matches!(self, Self::Store(_))
    }
}
