//! Places where a test stops one consumer among many.
//!
//! The named places of [`crate::crash_points`] end a whole process, and only in a program that was
//! built with their feature. Two callers need more. `testkit` runs many consumers in one process
//! and stops one of them at a chosen message. `relay demo` crashes the consumers of the released
//! program, which has no named places. Both kinds are reached by the same call, so that they stay
//! in the same places.

use std::fmt;
use std::sync::Arc;

use message::MessageId;

/// A point at which a crash must do no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// The effect is written but not committed.
    AfterEffect,
    /// The effect is committed, but the delivery is not settled.
    AfterCommit,
}

/// The function that is called at each crash point.
#[derive(Clone)]
pub(super) struct CrashHook(pub(super) Arc<dyn Fn(CrashPoint, MessageId) + Send + Sync>);

impl fmt::Debug for CrashHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CrashHook")
    }
}
