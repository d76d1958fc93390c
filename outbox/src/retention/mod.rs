//! Removes history that nobody needs any more: whole segments, never an undecided entry.
//!
//! A segment is removed when it is older than history is to be kept, and every relay's cursor has
//! passed it. An entry that is parked has a copy of its content there, so its row may
//! go.
//!
//! | module | what it holds |
//! |---|---|
//! | [`segment`] | [`Segment`], [`HeldBack`], [`Expired`]: what there is, why it stays, what went |
//! | [`forget`] | [`ForgetError`]: why a relay is not forgotten |

pub mod forget;
pub mod segment;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::Source;

pub use forget::ForgetError;
pub use segment::{Expired, HeldBack, Segment};

use crate::address::Address;
use crate::log::{LogError, LogOptions, RelayName};

/// The retention of one log. Each call opens a connection of its own.
#[async_trait]
pub trait LogRetention: Send + Sync + 'static {
    /// Every segment, and why it stays if entries are kept for `keep`. SQLite has one. Reads only;
    /// cancel-safe.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn segments(&self, keep: Duration) -> Result<Vec<Segment>, LogError>;

    /// Removes what is older than `keep` and passed by every relay. Gives way to producers: what is
    /// in use at the moment is left for the next time. Any number of processes may do it at once.
    /// Not cancel-safe: what was done when the call is dropped stays done.
    ///
    /// # Errors
    /// As for [`LogRetention::segments`].
    async fn expire(&self, keep: Duration) -> Result<Expired, LogError>;

    /// Removes decisions and operations of operators that are older than `keep` and whose messages
    /// are gone, of the oldest thousand of each. Returns how many went. Cancel-safe.
    ///
    /// # Errors
    /// As for [`LogRetention::segments`]; PostgreSQL refuses to remove what is younger than 30
    /// days.
    async fn forget_decisions(&self, keep: Duration) -> Result<u64, LogError>;

    /// Removes the cursor of a relay that is gone for good, so that it holds nothing back any more;
    /// should it come again, it begins with the oldest entry there is. With `discard_parked` also
    /// what is parked for it. Not cancel-safe: ask again.
    ///
    /// # Errors
    /// [`ForgetError`]: it leads, it is unknown, or entries are parked. Nothing is changed then.
    async fn forget(&self, relay: &RelayName, discard_parked: bool) -> Result<(), ForgetError>;
}

/// Retention for the database at an address: `postgres://…` or `sqlite:…`. Connects to nothing yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn open(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogRetention>, LogError> {
    Ok(crate::log::open::log(address.into(), source, options)?)
}
