//! Options of a node, with their bounds.

use std::sync::Arc;
use std::time::Duration;

use message::OutOfBounds;
use message::token::{Clock, SystemClock};
use migrations::Identifier;

use super::error::NodeError;

/// The default lease on a number.
pub const NODE_LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The shortest lease.
pub const NODE_LEASE_MIN: Duration = Duration::from_secs(3);
/// The longest lease.
pub const NODE_LEASE_MAX: Duration = Duration::from_secs(3_600);

/// Maximum length of a holder's name in bytes. The column takes 255, with the random part.
const HOLDER_BYTES_MAX: usize = 240;

/// The shortest limit of a call: a busy database needs its time.
const CALL_MIN: Duration = Duration::from_secs(1);

/// Options for opening a node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeOptions {
    /// How long a number is held without a renewal: [`NODE_LEASE_MIN`] to [`NODE_LEASE_MAX`], 30 s
    /// by default. The node makes ids for this long while the database is unavailable, and a number
    /// stays taken for this long after a crash.
    pub lease: Duration,
    /// The holder that operators see, with a random part: 1 to 240 bytes. By default the process
    /// id.
    pub holder: String,
    /// The PostgreSQL schema of the table; with `None` the `search_path` decides. SQLite has none.
    pub schema: Option<Identifier>,
    /// The source of the time. By default the machine's clock.
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
    message::setters! {
        /// Sets the lease.
        lease: Duration,
        /// Sets the holder that operators see.
        holder: String,
        /// Sets the PostgreSQL schema.
        schema as Option<Identifier>,
    }

    /// Sets the source of the time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    pub(super) fn check(&self) -> Result<(), NodeError> {
        OutOfBounds::check("lease", self.lease, NODE_LEASE_MIN..=NODE_LEASE_MAX)?;
        match self.holder.len() {
            1..=HOLDER_BYTES_MAX => Ok(()),
            bytes => Err(NodeError::Holder { bytes }),
        }
    }

    /// Returns the options with a holder that no other node has, whatever its process is called. A
    /// promoted standby may assign a number and its epoch a second time; then only the holder
    /// distinguishes two nodes.
    pub(super) fn unmistakable(mut self) -> Self {
        self.holder = format!("{} #{:08x}", self.holder, rand::random::<u32>());
        self
    }

    /// Returns the limit of one call. Three attempts without an answer fit into a lease.
    pub(super) fn call_limit(&self) -> Duration {
        (self.lease / 6).max(CALL_MIN)
    }

    /// Returns how long the node relies on its lease. It stops a tenth of the lease before the end
    /// in the database. This margin covers a slightly slow clock on this machine, and the time from
    /// making an id to storing its row.
    pub(super) fn relied_on(&self) -> Duration {
        self.lease - self.lease / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_one_name_are_told_apart() {
        let holder = || NodeOptions::default().holder("x".repeat(HOLDER_BYTES_MAX)).unmistakable().holder;
        assert_ne!(holder(), holder());
        assert!(holder().len() <= 255);
    }

    #[test]
    fn bounds_are_told() {
        let options = NodeOptions::default;
        assert!(options().check().is_ok());
        assert!(options().relied_on() < NODE_LEASE_DEFAULT);
        let told = options().lease(Duration::from_secs(1)).check().unwrap_err().to_string();
        assert_eq!(told, "the lease is 1s; choose 3s to 1h");
        let told = options().holder("x".repeat(256)).check().unwrap_err().to_string();
        assert!(told.contains("256 bytes"), "{told}");
        assert!(options().holder("").check().is_err());
    }
}
