//! Replies to requests: from an inbox into the mailbox of a saga.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Tx};
use message::Message;
use serde_json::value::RawValue;

use crate::dialect::{Dialect, Replied};
use crate::error::{Blocked, ReplyError, StoreError};
use crate::in_transaction::{InTransaction, check_transaction};
use crate::key::{InvalidKey, StepKey};
use crate::sagas::Sagas;
use crate::tables::Reply;
use crate::telemetry;

/// The header that carries the key of a request, `type/id/step`. A reply copies it.
pub const KEY_HEADER: &str = "saga-key";

/// The header that carries the token of a request. A reply copies it to prove that its sender got
/// the request: the key alone can be guessed.
pub const TOKEN_HEADER: &str = "saga-reply-token";

type Handling<'t> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 't>>;
type LateHandler<DB> =
    Arc<dyn for<'t> Fn(&'t mut Tx<DB>, StepKey, &'t Message) -> Handling<'t> + Send + Sync>;

/// A handler of an inbox's consumer that puts replies into the mailboxes of their sagas, in the
/// inbox's transaction; made by [`Sagas::replies`].
pub struct Replies<DB: Dialect> {
    sagas: Sagas<DB>,
    late: Option<LateHandler<DB>>,
}

impl<DB: Dialect> Sagas<DB> {
    /// Returns a handler for the messages that reply to requests. Pass it to
    /// [`ConsumerBuilder::handler`](inbox::ConsumerBuilder::handler). The header [`KEY_HEADER`]
    /// names the request, [`TOKEN_HEADER`] proves that its sender got it; the payload is JSON. A
    /// message without a key, without the token of that request, or whose payload is not JSON, is
    /// dead-lettered.
    #[must_use]
    pub fn replies(&self) -> Replies<DB> {
        Replies { sagas: self.clone(), late: None }
    }

    /// Puts a reply into the mailbox of a saga, in the caller's transaction, and wakes the saga.
    /// For replies that do not arrive as messages; you must verify their sender yourself. `tx` is
    /// an [`OutboxTransaction`](outbox::OutboxTransaction) or a [`sqlx::Transaction`]; a connection
    /// [does not compile](InTransaction).
    ///
    /// The commit of a kept reply waits for the disk, even if the settings do not ask for it: its
    /// sender does not send it again. On SQLite it refuses a transaction of the caller's own on a
    /// connection with `PRAGMA synchronous` below FULL.
    ///
    /// # Errors
    /// [`ReplyError`]: roll the transaction back; after an error an
    /// [`OutboxTransaction`](outbox::OutboxTransaction) refuses to commit. Not cancel-safe: drop the
    /// transaction with the call.
    pub async fn reply(
        &self,
        tx: &mut impl InTransaction<DB>,
        key: &StepKey,
        payload: &serde_json::Value,
    ) -> Result<Replied, ReplyError> {
        let payload = payload.to_string();
        let replied = self.keep_reply(tx, &Reply { key, payload: &payload, token: None }).await?;
        // Without a token, the check of the token cannot fail.
        Ok(replied.unwrap_or(Replied::Nobody))
    }

    /// Keeps a reply. Its payload is kept unchanged, so that no number loses a digit. Returns
    /// `None` for one with a wrong token.
    async fn keep_reply(
        &self,
        tx: &mut impl InTransaction<DB>,
        reply: &Reply<'_>,
    ) -> Result<Option<Replied>, ReplyError> {
        tx.begin_call().map_err(Blocked::Failed)?;
        let replied = self.keep_reply_in(tx.connection(), reply).await;
        tx.end_call(replied.as_ref().err().map(ReplyError::as_failed_call));
        if let Ok(Some(replied)) = replied {
            telemetry::replied(replied);
            self.wake();
        }
        replied
    }

    async fn keep_reply_in(
        &self,
        connection: &mut DB::Connection,
        reply: &Reply<'_>,
    ) -> Result<Option<Replied>, ReplyError> {
        check_transaction::<DB>(&mut *connection).await?;
        let replied = self.0.tables.put_reply(connection, reply).await;
        Ok(replied.map_err(StoreError::during("keep a reply to a saga"))?)
    }
}

impl<DB: Dialect> Replies<DB> {
    /// Sets a handler for replies that no saga waits for: the request has its outcome without one,
    /// the saga is being or was undone, or there is no such saga. It runs in the inbox's
    /// transaction. Without it, such replies are logged. The token of a reply cannot be checked if
    /// its saga does not exist, or no longer exists.
    ///
    /// ```no_run
    /// # fn example(sagas: saga::Sagas<sqlx::Postgres>) {
    /// let replies = sagas.replies().late(|tx, key, message| {
    ///     Box::pin(async move {
    ///         let note = "INSERT INTO late_reply (request, payload) VALUES ($1, $2)";
    ///         sqlx::query(note).bind(key.to_string()).bind(&message.payload[..]).execute(&mut **tx).await?;
    ///         Ok(())
    ///     })
    /// });
    /// # drop(replies); }
    /// ```
    #[must_use]
    pub fn late(
        mut self,
        handler: impl for<'t> Fn(
            &'t mut Tx<DB>,
            StepKey,
            &'t Message,
        ) -> Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 't>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.late = Some(Arc::new(handler));
        self
    }
}

#[async_trait]
impl<DB: Dialect> Handler<DB> for Replies<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let key = copied(message, KEY_HEADER)?;
        let key: StepKey = key.parse().map_err(|error: InvalidKey| HandlerError::rejecting(error))?;
        let token = Some(copied(message, TOKEN_HEADER)?);
        let payload: &RawValue = serde_json::from_slice(&message.payload)?;
        let replied = self.sagas.keep_reply(tx, &Reply { key: &key, payload: payload.get(), token }).await;
        let Some(replied) = replied? else {
            return Err(HandlerError::reject(format!(
                "the header {TOKEN_HEADER} is not that of the request {key}; a reply copies it from its request"
            )));
        };
        match (replied, &self.late) {
            (Replied::Kept | Replied::Duplicate, _) => {}
            (Replied::Late | Replied::Nobody, Some(late)) => late(tx, key, message).await?,
            (Replied::Late | Replied::Nobody, None) => {
                tracing::warn!(request = %key, ?replied, "a reply arrived that no saga is waiting for");
            }
        }
        Ok(None)
    }
}

/// Returns a header that a reply copies from its request.
fn copied<'m>(message: &'m Message, header: &str) -> Result<&'m str, HandlerError> {
    message.headers.get(header).ok_or_else(|| {
        HandlerError::reject(format!(
            "the message has no header {header}; a reply copies it from its request"
        ))
    })
}

impl<DB: Dialect> std::fmt::Debug for Replies<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").field("sagas", &self.sagas).finish_non_exhaustive()
    }
}
