//! The handler as a redrive calls it.

use std::time::Duration;

use async_trait::async_trait;
use message::{EventType, Message};
use migrations::SqlErrorKind;

use super::bounded::{self, Called, INTERRUPT_MAX};
use super::inbox_store::InboxStore;
use crate::dialect::Dialect;
use crate::handler::{Handler, HandlerError, Received, Tx};
use crate::ids::Tenant;

/// The handler of a consumer, with the same bounds as for a delivery: it ends in time together with
/// its running statement, a panic is caught, and its transaction is left intact.
pub(super) struct BoundedHandler<'a, DB: Dialect>(pub(super) &'a InboxStore<DB>);

#[async_trait]
impl<DB: Dialect> Handler<DB> for BoundedHandler<'_, DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let received = Received::first(self.0.consumer.clone(), Tenant::none(), message);
        self.handle_delivery(tx, message, &received).await
    }

    fn knows(&self, kind: &EventType) -> bool {
        self.0.handler.knows(kind)
    }

    async fn handle_delivery(
        &self,
        tx: &mut Tx<DB>,
        message: &Message,
        received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let InboxStore { handler, inbox, handler_timeout, .. } = self.0;
        let session = DB::session(tx).await?;
        let result =
            match bounded::call(*handler_timeout, handler.handle_delivery(tx, message, received)).await {
                Called::Ended(result) => result?,
                Called::TimedOut(error) => {
                    if let Some(session) = session {
                        // The session answers only after the interrupted statement has ended, for
                        // whatever reason.
                        let ended = async { drop(DB::session(tx).await) };
                        bounded::interrupt(|| inbox.interrupt(session), ended).await;
                    }
                    return Err(error);
                }
            };
        // The query fails if the handler ignored a failed statement.
        DB::session(tx).await.map_err(broken)?;
        Ok(result)
    }
}

/// Classifies the first error after a handler: the handler's own, unless the database failed.
fn broken(error: sqlx::Error) -> HandlerError {
    match SqlErrorKind::of(&error) {
        SqlErrorKind::Refused => HandlerError::of_broken_transaction(error),
        _ => error.into(),
    }
}

impl<DB: Dialect> InboxStore<DB> {
    /// Returns the maximum duration of a whole redrive.
    pub(super) fn redrive_max(&self) -> Duration {
        self.handler_timeout + INTERRUPT_MAX + self.inbox.options().call_timeout
    }
}
