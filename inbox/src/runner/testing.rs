//! A consumer for tests: without its guard, or ended at a chosen point.

use std::sync::Arc;

use message::MessageId;

use super::builder::ConsumerBuilder;
use super::crash::{CrashHook, CrashPoint};
use crate::dialect::Dialect;
use crate::handler::Handler;

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Switches the guard off, to show that without an inbox effects happen again.
    #[must_use]
    pub fn without_guard(mut self) -> Self {
        self.guarded = false;
        self
    }

    /// Does the same as [`handler`](Self::handler), for a handler that is shared.
    #[must_use]
    pub fn shared_handler(mut self, handler: Arc<dyn Handler<DB>>) -> Self {
        self.handler = Some(handler);
        self
    }

    /// Puts a test's handler in front of the consumer's own, however that one was registered.
    #[must_use]
    pub fn observed(
        mut self,
        observe: impl FnOnce(Arc<dyn Handler<DB>>) -> Arc<dyn Handler<DB>> + Send + Sync + 'static,
    ) -> Self {
        self.observe = Some(Box::new(observe));
        self
    }

    /// Calls a test's hook at points where a crash must be harmless.
    #[must_use]
    pub fn crash_hook(mut self, hook: impl Fn(CrashPoint, MessageId) + Send + Sync + 'static) -> Self {
        self.crash = Some(CrashHook(Arc::new(hook)));
        self
    }
}
