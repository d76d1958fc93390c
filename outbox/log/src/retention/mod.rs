//! Removes history that is no longer needed: whole segments, never an undecided entry.
//!
//! A segment is removed when it is older than the history to keep, and every relay's cursor has
//! passed it. A parked entry has its own copy of the content, so its row may be removed.
//!
//! | module | contents |
//! |---|---|
//! | `segment` | [`Segment`], [`HeldBack`], [`Expired`]: segments, why they stay, what was removed |
//! | `forget` | [`ForgetError`]: why a relay is not forgotten |
//! | `keep` | [`KEEP_MESSAGES`], [`KEEP_DECISIONS`]: the bounds of how long history is kept |

mod forget;
mod keep;
mod segment;

use std::time::Duration;

use async_trait::async_trait;

pub use forget::ForgetError;
pub use keep::{KEEP_DECISIONS, KEEP_MESSAGES, KeepBounds, KeepOutOfBounds};
pub use segment::{Expired, HeldBack, Segment};

pub use crate::open::retention as open;
use crate::{LogError, RelayName};

/// The retention of one log. Each call opens its own connection.
#[async_trait]
pub trait LogRetention: Send + Sync + 'static {
    /// Returns every segment, and why it stays when entries are kept for `keep`. SQLite has one
    /// segment. On PostgreSQL, entries must be that old by the server's clock and by this
    /// machine's. Reads only; cancel-safe.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn segments(&self, keep: Duration) -> Result<Vec<Segment>, LogError>;

    /// Removes segments that are older than `keep` and that every relay has passed. Gives way to
    /// producers: a segment in use is left for the next time. Several processes may call it at
    /// once. Not cancel-safe: work done before a drop stays done.
    ///
    /// # Errors
    /// As for [`LogRetention::segments`]. PostgreSQL also refuses more than the maximum of
    /// [`KEEP_MESSAGES`]: the ring of segments would start over before a segment is old enough.
    async fn expire(&self, keep: Duration) -> Result<Expired, LogError>;

    /// Removes operators' decisions and operations that are older than `keep` and whose messages no
    /// longer exist. Examines a thousand of each. For decisions it continues where the last call
    /// stopped, and after the last decision it begins again with the oldest. Returns the number
    /// removed. Cancel-safe.
    ///
    /// # Errors
    /// As for [`LogRetention::segments`]; PostgreSQL refuses to remove records younger than 30
    /// days.
    async fn forget_decisions(&self, keep: Duration) -> Result<u64, LogError>;

    /// Removes the cursor of a relay that will not return, so that it no longer holds back
    /// retention. If the relay returns, it begins with the oldest remaining entry, and publishes
    /// discarded, edited and paused messages as they were enqueued. `discard_parked` first removes
    /// its parked entries, 10,000 in each transaction. Not cancel-safe: call it again. Until a call
    /// has ended, the relay may return and continue without the discarded entries.
    ///
    /// Watches a lease that ends later than its holder can have asked for (a clock was ahead) for
    /// the length of the lease: a live holder renews it within that time.
    ///
    /// # Errors
    /// [`ForgetError`]: it leads, it is unknown, or entries are parked. Nothing was changed then,
    /// except that a part of the entries to discard may be gone.
    async fn forget(&self, relay: &RelayName, discard_parked: bool) -> Result<(), ForgetError>;
}
