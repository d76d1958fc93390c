//! The operations on held messages, for the inbox of a consumer.

use std::collections::HashSet;

use time::OffsetDateTime;

use crate::dead_letters::{Cause, HeldFirst, HeldKey, NotedTurn, Turn};
use crate::dialect::Dialect;
use crate::ids::{DeadLetterId, MessageName};
use crate::runner::bounded_handler::BoundedHandler;
use crate::runner::ended_owners::BEGINS_WITHIN;
use crate::runner::inbox_store::InboxStore;
use crate::runner::store::HeldMessages;
use crate::store_error::StoreError;
use crate::within::within;

impl<DB: Dialect> HeldMessages for InboxStore<DB> {
    async fn held_firsts(&self, after: Option<&HeldKey>, limit: u32) -> Result<Vec<HeldFirst>, StoreError> {
        let look = self.inbox.held_firsts(&self.consumer, after, limit);
        self.within("find the next held messages", look).await
    }

    async fn keys_closed_since(
        &self,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Option<HashSet<HeldKey>>, StoreError> {
        let look = self.inbox.keys_closed_since(&self.consumer, since, limit);
        self.within("check whether dead letters were closed", look).await
    }

    async fn firsts_of(&self, keys: &[HeldKey]) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        self.within("find the dead letter that holds a key", self.inbox.holders_of_keys(&self.consumer, keys))
            .await
    }

    async fn redrive_in_turn(&self, letter: DeadLetterId) -> Result<Turn, StoreError> {
        if self.draining.is_cancelled() {
            return Ok(Turn::NotNow);
        }
        let handler = BoundedHandler(self);
        let lock = || self.within("lock a held message", self.inbox.lock_turn(letter, &handler));
        let mut ended = None;
        let noted = loop {
            let Some(turn) = lock().await? else { return Ok(Turn::NotNow) };
            let noting = turn.note(&self.inbox, self.process, ended);
            match self.within("record the message to redrive", noting).await? {
                NotedTurn::Own { given_up: Some(failed), .. } => return Ok(Turn::Failed(Box::new(failed))),
                NotedTurn::Own { letter, given_up: None } => break letter,
                NotedTurn::OfAnother(owner) => {
                    tokio::time::sleep(BEGINS_WITHIN).await;
                    ended = Some(owner);
                }
            }
        };
        // Another process may have redriven it in between.
        let Some(turn) = lock().await? else {
            self.leave_letter(noted.key()).await?;
            return Ok(Turn::NotNow);
        };
        let failing = turn.failing();
        let applying = self.inbox.apply_in_turn(&self.consumer, turn, &handler);
        let turn = match self.unless_stopped(within(self.redrive_max(), "redrive", applying)).await {
            Some(Ok(resolution)) => Turn::Closed(resolution),
            Some(Err(error)) => Turn::Failed(Box::new(failing(error))),
            None => Turn::NotNow,
        };
        self.put_letter_down(noted.key(), matches!(turn, Turn::Closed(_))).await?;
        Ok(turn)
    }

    async fn fail_held(
        &self,
        letter: DeadLetterId,
        message: MessageName<'_>,
        cause: Cause,
    ) -> Result<bool, StoreError> {
        let call = self.inbox.fail_held(&self.consumer, letter, message, cause);
        self.within("dead-letter", call).await
    }
}
