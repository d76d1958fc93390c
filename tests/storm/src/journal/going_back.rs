//! Messages and rows that a database forgot when it went back, and ids that it gave out twice.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The producers' database went back, and what it knew until then and knows no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WentBack {
    /// When: see [`crate::clock`]. Nobody had written to the earlier state by then.
    pub at: u64,
    /// Messages.
    pub messages: Vec<Uuid>,
    /// Business rows.
    pub rows: Vec<String>,
}

/// Where it stands: in the storm's folder.
pub const WENT_BACK: &str = "went-back.journal";

/// The outbox's sequence was set back: these ids are given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBack {
    /// Those above this one.
    pub above: i64,
    /// Up to this one.
    pub up_to: i64,
}

/// Where it stands: in the storm's folder.
pub const SET_BACK: &str = "set-back.journal";
