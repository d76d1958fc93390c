//! The error that keeps a relay from its broker, stored for operators.

use message::{PublishError, error_text};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Maximum bytes of the stored text. Every checkpoint writes it while the error lasts.
const ERROR_BYTES_MAX: usize = 1_000;

/// Why no message of a relay reaches its broker. It is stored in the relay's row beside the cursor.
/// So it needs no column, every leading relay can write it, and a relay of an older version drops
/// it at its next checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerTrouble {
    /// The error and the remedy.
    pub error: String,
    /// Whether the broker may recover without help; otherwise an operator must act.
    pub passes: bool,
    /// When it began, by the relay's clock.
    #[serde(with = "time::serde::timestamp")]
    pub since: OffsetDateTime,
}

impl BrokerTrouble {
    /// Describes the refusal of a session, cut to 1,000 bytes.
    #[must_use]
    pub fn new(error: &PublishError, since: OffsetDateTime) -> Self {
        Self::of(&error.to_string(), error.fault().is_temporary(), since)
    }

    /// Makes a trouble from its text, cut to 1,000 bytes.
    #[must_use]
    pub fn of(error: &str, passes: bool, since: OffsetDateTime) -> Self {
        Self { error: error_text::storable(error, ERROR_BYTES_MAX), passes, since }
    }
}
