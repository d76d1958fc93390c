//! Runs the handler, and interrupts it at its timeout.

use message::Message;

use super::bounded::{self, Called};
use super::store::Store;
use super::worker::Worker;
use crate::error::CommitError;
use crate::handler::{HandlerError, Received};
use crate::ids::Tenant;

impl<S: Store> Worker<S> {
    /// Returns the facts of a delivery that a handler gets; `failures` were counted before.
    pub(super) fn received(&self, tenant: &Tenant, message: &Message, failures: u32) -> Received {
        Received::after(failures, self.consumer.clone(), tenant.clone(), message)
    }

    /// Runs the handler. A handler that times out is dropped, and its running statement is
    /// interrupted.
    pub(super) async fn handle(
        &self,
        tx: &mut S::Tx,
        guard: &S::Guard,
        message: &Message,
        received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let entry = self.handling.enter(message.id);
        let called = bounded::call(self.handler_timeout, self.store.handle(tx, message, received)).await;
        self.status.message_waits().handled(message.id);
        drop(entry);
        self.ended(called, guard).await
    }

    /// Does the same as [`handle`](Self::handle) for many messages of one kind in one call, with
    /// the same timeout.
    pub(super) async fn handle_many(
        &self,
        tx: &mut S::Tx,
        guard: &S::Guard,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        let entries: Vec<_> = messages.iter().map(|message| self.handling.enter(message.id)).collect();
        let handling = async { self.store.handle_many(tx, messages, received).await.map(|()| None) };
        let called = bounded::call(self.handler_timeout, handling).await;
        // They share one attempt, so the first stands for all.
        if let Some(first) = messages.first() {
            self.status.message_waits().handled(first.id);
        }
        drop(entries);
        self.ended(called, guard).await.map(drop)
    }

    async fn ended(&self, called: Called, guard: &S::Guard) -> Result<Option<Vec<u8>>, HandlerError> {
        let error = match called {
            Called::Ended(result) => return result,
            Called::TimedOut(error) => error,
        };
        self.meter.timed_out();
        // The rollback waits for the statement.
        bounded::interrupt(|| self.store.interrupt(guard), std::future::ready(())).await;
        Err(error)
    }
}

/// Returns the failure of the handler, if the messages that it staged could not be stored before
/// the commit; otherwise the error itself.
pub(super) fn of_staged(error: CommitError) -> Result<HandlerError, CommitError> {
    match error {
        CommitError::RolledBack { .. } | CommitError::Refused { .. } | CommitError::Unknown { .. } => {
            Err(error)
        }
        error => Ok(HandlerError::of_enqueue(error.remedy(), error)),
    }
}
