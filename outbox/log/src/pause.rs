//! Pauses that operators have set.

use std::fmt;
use std::time::Duration;

use message::{TEXT_BYTES_MAX, check_name};
use outbox::Signature;
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::error::LogError;

/// Maximum topics and keys that are paused at once for a relay. The relay reads and keeps all of
/// them. Operators who pause at the same time can exceed it, by one each.
pub const PAUSES_MAX: i64 = 10_000;

/// Refuses a pause if the relay, with it, would have more than [`PAUSES_MAX`] of them.
pub(crate) fn check_pauses_len(scope: &PauseScope, pauses: i64) -> Result<(), LogError> {
    if pauses <= PAUSES_MAX {
        return Ok(());
    }
    Err(LogError::operator(format!(
        "{scope} cannot be paused: the relay already has {PAUSES_MAX} pauses, the maximum; resume some of \
         them, or pause a whole topic or the pipeline instead of single keys"
    )))
}

/// A part of the log that a relay does not publish until an operator resumes it. Its messages stay
/// in the log or are held, in their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PauseScope {
    /// Everything.
    Pipeline,
    /// Messages of a topic, and later messages of their keys.
    Topic(String),
    /// Messages with an ordering key.
    Key(String),
}

impl PauseScope {
    /// Returns the word for its kind that the database stores: `pipeline`, `topic` or `key`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pipeline => "pipeline",
            Self::Topic(_) => "topic",
            Self::Key(_) => "key",
        }
    }

    /// Returns the name of the topic or key; empty for the pipeline.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Pipeline => "",
            Self::Topic(name) | Self::Key(name) => name,
        }
    }

    /// Returns the signature of an operator who pauses or resumes it.
    ///
    /// # Errors
    /// [`LogError::Operator`] for a name that no topic or key can have, and for an actor or reason
    /// that the audit cannot store.
    pub(crate) fn signed(&self, actor: &str, reason: &str) -> Result<Signature, LogError> {
        let selection = Some(self.to_string());
        let signature = Signature { actor: actor.to_owned(), note: reason.to_owned(), selection };
        let named = match self {
            Self::Pipeline => Ok(()),
            Self::Topic(name) | Self::Key(name) => {
                let what = if matches!(self, Self::Topic(_)) { "topic" } else { "ordering key" };
                check_name(what, name, TEXT_BYTES_MAX, "NUL is not allowed", |c| c != '\0')
            }
        };
        let checked = named.and_then(|()| signature.check());
        checked.map(|()| signature).map_err(|error| LogError::operator(error.to_string()))
    }

    /// Reads the scope that the database stores.
    pub(crate) fn stored(kind: &str, name: String) -> Result<Self, LogError> {
        match kind {
            "pipeline" => Ok(Self::Pipeline),
            "topic" => Ok(Self::Topic(name)),
            "key" => Ok(Self::Key(name)),
            other => Err(LogError::Corrupt { what: "pause", problem: format!("{other:?} cannot be paused") }),
        }
    }
}

impl fmt::Display for PauseScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pipeline => f.write_str("pipeline"),
            Self::Topic(name) => write!(f, "topic {name}"),
            Self::Key(name) => write!(f, "key {name}"),
        }
    }
}

/// As `pipeline`, `topic …` or `key …`.
impl Serialize for PauseScope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A pause with its author and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The scope that is paused.
    pub scope: PauseScope,
    /// Who paused it.
    pub actor: String,
    /// The reason.
    pub reason: String,
    /// When it was set, by the database's clock.
    pub since: OffsetDateTime,
    /// Time since then, by the same clock.
    pub age: Duration,
}
