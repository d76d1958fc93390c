//! Messages and rows that a database lost when it was set back, and ids that it assigned twice.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A moment at which the producers' database was set back to an earlier state, and the data that it
/// lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WentBack {
    /// The time; see [`crate::clock`]. No client had written to the earlier state by then.
    pub at: u64,
    /// The forgotten messages.
    pub messages: Vec<Uuid>,
    /// The forgotten business rows.
    pub rows: Vec<String>,
}

/// The journal's file in the storm's folder.
pub const WENT_BACK: &str = "went-back.journal";

/// A moment at which the outbox's sequence was set back. It assigns the ids of a range again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBack {
    /// The lower end of the range, exclusive.
    pub above: i64,
    /// The upper end of the range, inclusive.
    pub up_to: i64,
}

/// The journal's file in the storm's folder.
pub const SET_BACK: &str = "set-back.journal";
