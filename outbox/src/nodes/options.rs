//! Settings of a node, with their bounds.

use std::sync::Arc;
use std::time::Duration;

use message::token::{Clock, SystemClock};
use migrations::Identifier;

use super::error::NodeError;

/// How long a number is leased by default.
pub const NODE_LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The shortest lease.
pub const NODE_LEASE_MIN: Duration = Duration::from_secs(3);
/// The longest lease.
pub const NODE_LEASE_MAX: Duration = Duration::from_secs(3_600);

/// The longest name of a holder.
const HOLDER_BYTES_MAX: usize = 255;

/// The settings that a node is opened with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeOptions {
    /// How long a number is held without a renewal: [`NODE_LEASE_MIN`] to [`NODE_LEASE_MAX`], 30 s
    /// by default. For so long the node makes ids while the database is away, and for so long a
    /// number stays taken after a crash.
    pub lease: Duration,
    /// Who is seen to hold the number, for operators: 1 to 255 bytes. By default the process id. It
    /// decides nothing.
    pub holder: String,
    /// The PostgreSQL schema of the table; without one the `search_path` finds it. SQLite has none.
    pub schema: Option<Identifier>,
    /// Where the time comes from; by default the machine.
    pub clock: Arc<dyn Clock>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            lease: NODE_LEASE_DEFAULT,
            holder: format!("process {}", std::process::id()),
            schema: None,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl NodeOptions {
    /// Sets the lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets who is seen to hold the number.
    #[must_use]
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Sets the PostgreSQL schema.
    #[must_use]
    pub fn schema(mut self, schema: Option<Identifier>) -> Self {
        self.schema = schema;
        self
    }

    /// Sets where the time comes from: for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    pub(super) fn check(&self) -> Result<(), NodeError> {
        let value = self.lease;
        if !(NODE_LEASE_MIN..=NODE_LEASE_MAX).contains(&value) {
            return Err(NodeError::Lease { value });
        }
        match self.holder.len() {
            1..=HOLDER_BYTES_MAX => Ok(()),
            bytes => Err(NodeError::Holder { bytes }),
        }
    }

    /// How long the node itself relies on a lease: it ends here before it ends in the database,
    /// also when this machine's clock goes a little slower, and an id takes a while from here to a
    /// row.
    pub(super) fn relied_on(&self) -> Duration {
        self.lease - self.lease / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_told() {
        let options = NodeOptions::default;
        assert!(options().check().is_ok());
        assert!(options().relied_on() < NODE_LEASE_DEFAULT);
        let told = options().lease(Duration::from_secs(1)).check().unwrap_err().to_string();
        assert_eq!(told, "the lease of 1s is out of bounds; choose 3s to 3600s");
        let told = options().holder("x".repeat(256)).check().unwrap_err().to_string();
        assert!(told.contains("256 bytes"), "{told}");
        assert!(options().holder("").check().is_err());
    }
}
