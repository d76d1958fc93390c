//! An effect elsewhere, requested by a message and answered by another one.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outbox::{IntoMessage, NewMessage, OutboxTransaction};
use serde::de::DeserializeOwned;

use super::undo::{NoUndo, UndoInTx, UndoRequest};
use super::work::{Accepts, Code, TxUndo};
use super::{Halt, Parts, Run, Stopped, change};
use crate::dialect::Dialect;
use crate::record::{Commits, NewStep, StepChange, StepKind, StepRecord, StepState, UndoState};
use crate::replies::{KEY_HEADER, TOKEN_HEADER};
use crate::stop::{StepError, Stop};

/// A request that is about to be sent: `.await` it, after [`within`](Request::within) and
/// [`undo`](Request::undo) if it has them.
#[must_use = "a request does nothing until it is awaited"]
pub struct Request<'r, DB: Dialect, T, U = NoUndo> {
    parts: &'r mut Parts<DB>,
    name: &'r str,
    message: NewMessage,
    within: Option<Duration>,
    undo: U,
    reply: PhantomData<fn() -> T>,
}

impl<DB: Dialect> Run<DB> {
    /// Sends a message through the outbox and waits for its reply. The message carries the key
    /// `type/id/step` in the header [`KEY_HEADER`], and a token in [`TOKEN_HEADER`]. The reply
    /// carries both back in the same way, and its payload is the JSON of the result
    /// ([`Sagas::replies`](crate::Sagas::replies)).
    ///
    /// A reply that arrives before the saga waits is kept; a second one is suppressed. A reply that
    /// is not the JSON of the result makes the saga stuck, and is kept.
    ///
    /// # Errors
    /// [`Stop`]: no reply arrived in time ([`Stop::is_timeout`]), or the saga pauses here. Not
    /// cancel-safe, like [`step`](Self::step).
    pub fn request<'r, T>(&'r mut self, name: &'r str, event: impl IntoMessage) -> Request<'r, DB, T> {
        let message = event.into_message();
        let parts = &mut self.parts;
        Request { parts, name, message, within: None, undo: NoUndo, reply: PhantomData }
    }
}

impl<'r, DB: Dialect, T> Request<'r, DB, T> {
    /// Undoes the request if the saga stops, even without a reply, because the request may have
    /// taken effect. The undo commits once, together with its record. Enqueue a message that
    /// revokes the request.
    pub fn undo<U, E>(self, undo: U) -> Request<'r, DB, T, UndoRequest<Code<U, E, impl Accepts<StepError>>>>
    where
        U: AsyncFnOnce(&mut OutboxTransaction<DB>, Option<&T>) -> Result<(), E>
            + for<'t> TxUndo<'t, DB, T, E>
            + Send,
        E: Into<StepError> + 'static,
        T: 'static,
    {
        let Self { parts, name, message, within, reply, .. } = self;
        Request { parts, name, message, within, undo: UndoRequest(Code::new(undo, ())), reply }
    }
}

impl<DB: Dialect, T, U> Request<'_, DB, T, U> {
    /// Sets the maximum wait, by the clocks of database and worker. If they differ, the later of
    /// the two times decides. Up to a century ([`SPAN_MAX`](crate::SPAN_MAX)). Without it the saga
    /// waits until the reply arrives.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }
}

impl<'r, DB, T, U> IntoFuture for Request<'r, DB, T, U>
where
    DB: Dialect,
    T: DeserializeOwned + Send + Sync + 'static,
    U: UndoInTx<DB, T> + 'r,
{
    type Output = Result<T, Stop>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'r>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { parts, name, message, within, undo, .. } = self;
        Box::pin(async move {
            let row = parts.enter(StepKind::Request, name)?;
            let outcome = match row {
                Some(row) if parts.is_target(name) => Err(parts.undo_in_tx(&row, undo).await),
                Some(row) if row.state == StepState::Waiting && parts.target.is_none() => {
                    parts.await_reply(&row, within).await
                }
                Some(row) => parts.replay(&row),
                None => parts.send_request(name, message, within, U::STATE).await,
            };
            parts.leave(outcome)
        })
    }
}

impl<DB: Dialect> Parts<DB> {
    async fn send_request<T: DeserializeOwned>(
        &mut self,
        name: &str,
        message: NewMessage,
        within: Option<Duration>,
        undo: UndoState,
    ) -> Result<T, Stopped> {
        self.check_span(name, within)?;
        let mut tx = self.begin(name).await?;
        let message = message.header(KEY_HEADER, self.held.id.key(name));
        let message = message.header(TOKEN_HEADER, self.secret.token(name));
        let sagas = Arc::clone(&self.sagas);
        match sagas.db.any(tx.enqueue(message)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return self.failed_step(name, &error.into()),
            Err(error) => return self.failed_store("enqueue a request", error),
        }
        let Some(reply) = self.mailbox.get(name).cloned() else {
            self.begin_wait(tx, name, StepKind::Request, undo, within).await?;
            return self.halt(Halt::Waiting);
        };
        // The reply arrived before the request.
        let value = self.decode(name, Some(&reply))?;
        let position = self.next_position();
        let done = NewStep {
            name,
            position,
            kind: StepKind::Request,
            state: StepState::Done,
            undo,
            result: Some(&reply),
            error: None,
            due_in: None,
        };
        self.insert_step(&mut tx, &done, Commits::WithEffect).await?;
        self.commit(name, tx).await?;
        self.has_progressed = true;
        Ok(value)
    }

    async fn await_reply<T: DeserializeOwned>(
        &mut self,
        row: &StepRecord,
        within: Option<Duration>,
    ) -> Result<T, Stopped> {
        if let Some(reply) = self.mailbox.get(&row.name).cloned() {
            let value = self.decode(&row.name, Some(&reply))?;
            let done = change(row, StepState::Done, row.undo, Some(&reply), None);
            self.change_step(&StepChange { is_forward: true, ..done }).await?;
            self.has_progressed = true;
            return Ok(value);
        }
        self.wait_until_due(row).await?;
        let limit = within.map(|limit| format!(" within {limit:?}")).unwrap_or_default();
        let text = format!("no reply to the request {} arrived{limit}", row.name);
        // The change fails if a reply has arrived since the mailbox was read: that reply is read
        // first.
        let over = change(row, StepState::TimedOut, row.undo, None, Some(&text));
        self.change_step(&StepChange { is_forward: true, replies: Some(self.replies), ..over }).await?;
        self.has_progressed = true;
        Err(Stop::timeout(text))
    }
}

impl<DB: Dialect, T, U> std::fmt::Debug for Request<'_, DB, T, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("name", &self.name)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}
