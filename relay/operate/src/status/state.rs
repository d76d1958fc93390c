//! The state of a pipeline.

use serde::{Serialize, Serializer};

message::words! {
    /// The state of a pipeline, by what its database knows of its relay.
    #[derive(Hash)]
    pub enum PipelineState {
        /// A relay holds the lease.
        Leading = "leading",
        /// No relay holds the lease: the last one released it.
        Idle = "idle",
        /// The lease has expired, and no other relay has taken over.
        Expired = "expired",
        /// No relay has ever led.
        New = "new",
        /// The database does not answer.
        Unknown = "unknown",
    }
}

impl PipelineState {
    /// Returns whether the database answered.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::Unknown
    }
}

impl Serialize for PipelineState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
