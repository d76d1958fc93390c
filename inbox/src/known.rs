//! The state of a message at a consumer, as an inbox knows it.

use time::OffsetDateTime;

use crate::attempts::Attempt;
use crate::ids::DeadLetterId;

/// The state of a message at one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The consumer.
    pub consumer: String,
    /// The tenant; empty for none.
    pub tenant: String,
    /// Its state.
    pub state: KnownState,
}

/// State of a message at a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownState {
    /// It took effect.
    Applied {
        /// When, by the database's clock.
        at: OffsetDateTime,
        /// The size of the stored result; `None` when there is none.
        result_bytes: Option<u64>,
    },
    /// It is, or was, among the dead letters, and took no effect.
    Dead(DeadLetterId),
    /// Its handler failed, and it will be retried.
    Retrying(Attempt),
}
