//! The error that keeps a relay from its broker, as it is kept for operators.

use message::{PublishError, error_text};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// The longest text that is kept. It is written with every checkpoint while it lasts.
const ERROR_BYTES_MAX: usize = 1_000;

/// Why no message of a relay reaches its broker. Stands beside the cursor in the relay's row: so it
/// needs no column, every relay that leads can write it, and one of an older version leaves it out
/// of its next checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerTrouble {
    /// The error and the remedy.
    pub error: String,
    /// Whether the broker may come back by itself; an operator has to act otherwise.
    pub passes: bool,
    /// Since when, by the clock of the relay.
    #[serde(with = "time::serde::timestamp")]
    pub since: OffsetDateTime,
}

impl BrokerTrouble {
    /// The refusal of a session, cut to 1,000 bytes.
    #[must_use]
    pub fn new(error: &PublishError, since: OffsetDateTime) -> Self {
        Self::of(&error.to_string(), error.fault() == message::Fault::Broker, since)
    }

    /// A trouble with its text, cut to 1,000 bytes.
    #[must_use]
    pub fn of(error: &str, passes: bool, since: OffsetDateTime) -> Self {
        Self { error: error_text::storable(error, ERROR_BYTES_MAX), passes, since }
    }
}
