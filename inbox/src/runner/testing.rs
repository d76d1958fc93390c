//! A consumer for tests: without its guard, or ended at a chosen moment.

use std::sync::Arc;

use message::MessageId;

use super::builder::ConsumerBuilder;
use super::crash::{CrashHook, CrashPoint};
use crate::dialect::Dialect;

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Switches the guard off, to show that without an inbox effects happen again.
    #[must_use]
    pub fn without_guard(mut self) -> Self {
        self.guarded = false;
        self
    }

    /// Calls a test's hook at the moments when a crash must do no harm.
    #[must_use]
    pub fn crash_hook(mut self, hook: impl Fn(CrashPoint, MessageId) + Send + Sync + 'static) -> Self {
        self.crash = Some(CrashHook(Arc::new(hook)));
        self
    }
}
