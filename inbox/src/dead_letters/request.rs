//! Asks consumers to redrive dead letters, and keeps these requests.

use std::time::Duration;

use message::shield;

use super::decision::{Action, DecidedLetter, Decision, Redriven, Requested, Signature};
use super::options::RedriveOptions;
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// A request that is noted, but not committed.
struct Noted<DB: Dialect> {
    tx: InboxTransaction<DB>,
    /// Whether the same request was not open before.
    is_new: bool,
}

impl<DB: Dialect> Inbox<DB> {
    /// Asks the consumer of a dead letter to redrive it. Any process of that consumer does so
    /// within seconds, with its handler. [`decisions`](Self::decisions) shows the outcome. A
    /// request that accepts late messages replaces an open one that does not.
    ///
    /// # Errors
    /// [`RedriveError::NotFound`]; [`RedriveError::Held`] for a held message while an earlier dead
    /// letter of its key is open (for other dead letters the consumer checks this itself, if it
    /// holds keys); [`RedriveError::NotAMessage`] when there is no message to pass to a handler;
    /// [`RedriveError::InHand`] while a redrive of it runs for longer than half the [call
    /// timeout](crate::InboxOptions::call_timeout); [`RedriveError::Store`]. Runs to its end even if
    /// this call is dropped.
    pub async fn request_redrive(
        &self,
        id: DeadLetterId,
        options: RedriveOptions,
        signature: &Signature,
    ) -> Result<Requested, RedriveError> {
        signature.check()?;
        let inbox = self.clone();
        let signature = signature.clone();
        shield(async move {
            let noting = Box::pin(inbox.note_request(id, options, &signature));
            let noted: Result<_, RedriveError> = inbox.in_time("note a request", noting).await;
            match noted.map_err(|error| error.of_decision(id))? {
                Ok(Noted { tx, is_new }) => {
                    drop(tx.commit().await?);
                    Ok(if is_new { Requested::Now } else { Requested::Already })
                }
                Err(closed) => Ok(Requested::Closed(closed)),
            }
        })
        .await
    }

    /// Begins the transaction of a decision about one dead letter, or about some together.
    pub(crate) async fn begin_decision(&self) -> Result<InboxTransaction<DB>, StoreError> {
        self.begin_decision_of(1).await
    }

    /// Begins the transaction of one of several decisions, which together wait for locks as long as
    /// one decision does. A redrive locks its dead letter for as long as its handler runs. Half of
    /// the call timeout leaves time for the answer.
    pub(crate) async fn begin_decision_of(&self, all: u32) -> Result<InboxTransaction<DB>, StoreError> {
        let mut tx = self.begin().await?;
        let wait = self.options().call_timeout / 2 / all.max(1);
        // A limit of zero would be none.
        let limited = DB::limit_lock_waits(&mut tx, wait.max(Duration::from_millis(1))).await;
        limited.map_err(StoreError::during("limit its waits for locks"))?;
        Ok(tx)
    }

    /// Notes a request, in a transaction to commit. For a closed dead letter, returns how it was
    /// closed.
    async fn note_request(
        &self,
        id: DeadLetterId,
        options: RedriveOptions,
        signature: &Signature,
    ) -> Result<Result<Noted<DB>, Redriven>, RedriveError> {
        let mut tx = self.begin_decision().await?;
        let letter = match self.open_letter(&mut tx, id).await? {
            Ok(letter) => letter,
            Err(closed) => return Ok(Err(closed)),
        };
        letter.message().map_err(|problem| RedriveError::NotAMessage { id, problem })?;
        self.check_turn(&mut tx, &letter, options.after_dead_letter).await?;
        if options.accept_late {
            let replaced = self.tables().replace_requests(&mut tx, &[id.0], None).await;
            replaced.map_err(StoreError::during("replace a request"))?;
        }
        let asked = DecidedLetter { accept_late: options.accept_late, ..DecidedLetter::of(&letter) };
        let noted = self.tables().note_decision(&mut tx, signature, Action::Redrive, &asked).await;
        let is_new = noted.map_err(StoreError::during("note a request"))?.is_some();
        Ok(Ok(Noted { tx, is_new }))
    }

    /// Returns the open requests for redrives of a consumer after a sequence number, oldest first.
    /// Cancel-safe.
    pub(crate) async fn redrive_requests(
        &self,
        consumer: &ConsumerName,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut connection = self.acquire("list requested redrives").await?;
        self.tables()
            .requests(&mut connection, consumer.as_str(), after, limit)
            .await
            .map_err(StoreError::during("list requested redrives"))
    }

    /// Notes why a requested redrive did not succeed; the dead letter stays open.
    pub(crate) async fn fail_request(&self, number: i64, outcome: &str) -> Result<(), StoreError> {
        let mut connection = self.acquire("store the outcome of a redrive").await?;
        self.tables()
            .finish_request(&mut connection, number, outcome)
            .await
            .map_err(StoreError::during("store the outcome of a redrive"))?;
        Ok(())
    }
}
