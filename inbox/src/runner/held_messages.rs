//! The runner's operations on held messages in a database.

use std::collections::HashSet;
use std::future::Future;

use time::OffsetDateTime;

use super::in_hand::BEGINS_WITHIN;
use super::inbox_store::InboxStore;
use super::redrive::BoundedHandler;
use crate::dead_letter::DeadLetterId;
use crate::dialect::Dialect;
use crate::held_keys::{HeldFirst, HeldKey};
use crate::held_turn::{NotedTurn, Turn};
use crate::name::MessageName;
use crate::store_dead_letter::Cause;
use crate::store_error::StoreError;
use crate::within::within;

/// The operations of the runner on held messages. By default a store holds no messages.
pub trait HeldMessages: Send + Sync + 'static {
    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    fn held_firsts(
        &self,
        _after: Option<&HeldKey>,
        _limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldFirst>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the keys with a dead letter that was closed since a given time of the database's
    /// clock; `None` when `limit` or more dead letters were closed.
    fn keys_closed_since(
        &self,
        _since: OffsetDateTime,
        _limit: u32,
    ) -> impl Future<Output = Result<Option<HashSet<HeldKey>>, StoreError>> + Send {
        std::future::ready(Ok(Some(HashSet::new())))
    }

    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn firsts_of(
        &self,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>, StoreError>> + Send {
        std::future::ready(Ok(vec![None; keys.len()]))
    }

    /// Redrives a held message if it is due. After an error, nothing was begun. A message that was
    /// begun and not applied has [failed](Turn::Failed), whatever the reason.
    fn redrive_in_turn(
        &self,
        _letter: DeadLetterId,
    ) -> impl Future<Output = Result<Turn, StoreError>> + Send {
        std::future::ready(Ok(Turn::NotNow))
    }

    /// Turns a held message into an ordinary dead letter. Returns whether it was still held.
    fn fail_held(
        &self,
        _letter: DeadLetterId,
        _message: MessageName<'_>,
        _cause: Cause,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

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
        let turn = match within(self.redrive_max(), "redrive", applying).await {
            Ok(resolution) => Turn::Closed(resolution),
            Err(error) => Turn::Failed(Box::new(failing(error))),
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
