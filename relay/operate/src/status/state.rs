//! The state of a pipeline.

use std::fmt;

use serde::{Serialize, Serializer};

/// The state of a pipeline, by what its database knows of its relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PipelineState {
    /// A relay holds the lease.
    Leading,
    /// No relay holds the lease: the last one released it.
    Idle,
    /// The lease has expired, and no other relay has taken over.
    Expired,
    /// No relay has ever led.
    New,
    /// The database does not answer.
    Unknown,
}

impl PipelineState {
    /// Returns the lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leading => "leading",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::New => "new",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether the database answered.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::Unknown
    }
}

impl fmt::Display for PipelineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for PipelineState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
