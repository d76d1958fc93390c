//! Where a test stops a consumer.

use std::fmt;
use std::sync::Arc;

use message::MessageId;

/// A moment at which a crash must do no harm.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// The effect is written, not committed.
    AfterEffect,
    /// The effect is committed, the delivery not settled.
    AfterCommit,
}

/// What a test does there.
#[derive(Clone)]
pub(super) struct CrashHook(pub(super) Arc<dyn Fn(CrashPoint, MessageId) + Send + Sync>);

impl fmt::Debug for CrashHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CrashHook")
    }
}
