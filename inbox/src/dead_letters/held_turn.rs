//! Redrives the first held message of a key, in its turn.

use std::time::Duration;

use message::{MessageId, ahead, shield};
use uuid::Uuid;

use super::in_hand::Hand;
use super::options::{AfterDeadLetter, RedriveOptions};
use super::reason::{Cause, Resolution};
use super::record::DeadLetter;
use crate::attempts::{Attempt, Forget};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::handler::Handler;
use crate::ids::{ConsumerName, DeadLetterId, Key, MessageName, Tenant, key};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum pause between two attempts. A held message whose next attempt is further away failed
/// while the database's clock was ahead. Equal in all processes: each reads pauses that others have
/// stored.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(86_400);

/// The outcome of redriving a held message.
#[derive(Debug)]
pub enum Turn {
    /// It is closed.
    Closed(Resolution),
    /// Nothing was done: another process has it, an operator decided about it, an earlier dead
    /// letter of its key is open, or it waits for its next attempt or for a process that knows its
    /// kind.
    NotNow,
    /// It failed and stays held.
    Failed(Box<FailedTurn>),
}

/// A held message that is due, locked in the transaction that will apply it.
#[derive(Debug)]
pub(crate) struct HeldTurn<DB: Dialect> {
    tx: InboxTransaction<DB>,
    /// The dead letter; its `attempts` are the failures counted before.
    letter: DeadLetter,
    tenant: Tenant,
    message_id: MessageId,
    /// Whether a failure is recorded, counted or not.
    has_failed: bool,
}

impl<DB: Dialect> HeldTurn<DB> {
    /// Returns a function that makes the [`FailedTurn`] of this message from an error.
    pub(crate) fn failing(&self) -> impl FnOnce(RedriveError) -> FailedTurn + use<DB> {
        let tenant = self.tenant.clone();
        let message_id = self.message_id;
        let failures = self.letter.attempts;
        move |error| FailedTurn { tenant, message_id, failures, error }
    }

    /// Ends the turn and records that a process has the message in hand, unless another process has
    /// recorded that. Takes over the note of the process `ended`.
    pub(crate) async fn note(
        mut self,
        inbox: &Inbox<DB>,
        process: Uuid,
        ended: Option<Uuid>,
    ) -> Result<NotedTurn, StoreError> {
        let given_up = match inbox.take_letter(&mut self.tx, &self.letter, process, ended).await? {
            Hand::Own { given_up } => given_up,
            Hand::OfAnother(owner) => return Ok(NotedTurn::OfAnother(owner)),
        };
        let failing = self.failing();
        let noted = self.tx.commit().await;
        noted.map_err(|error| StoreError::broken("record the message to redrive", error))?;
        let id = self.letter.id;
        let given_up = given_up.map(|problem| failing(RedriveError::NotAMessage { id, problem }));
        Ok(NotedTurn::Own { letter: Box::new(self.letter), given_up })
    }
}

/// The outcome of noting that a held message is in hand.
pub(crate) enum NotedTurn {
    /// The asking process has it in hand.
    Own {
        /// Its dead letter.
        letter: Box<DeadLetter>,
        /// The failure to dead-letter it with, if too many processes ended with it in hand.
        given_up: Option<FailedTurn>,
    },
    /// Another process has it in hand, or has ended.
    OfAnother(Uuid),
}

/// A held message that failed.
#[derive(Debug)]
pub struct FailedTurn {
    /// The tenant.
    pub tenant: Tenant,
    /// The message.
    pub message_id: MessageId,
    /// Number of failures counted so far.
    pub failures: u32,
    /// The failure.
    pub error: RedriveError,
}

impl<DB: Dialect> Inbox<DB> {
    /// Locks a held message for its redrive. Returns `None` when it is not due, or when the handler
    /// has no effect for its kind: then it waits for a process that knows the kind. A message whose
    /// next attempt is further away than [`PAUSE_MAX`] is due.
    pub(crate) async fn lock_turn(
        &self,
        id: DeadLetterId,
        handler: &dyn Handler<DB>,
    ) -> Result<Option<HeldTurn<DB>>, StoreError> {
        let failed = StoreError::during;
        let mut tx = self.begin().await?;
        let locked = self.tables().lock_held(&mut tx, id).await.map_err(failed("read a held message"))?;
        let Some(letter) = locked else { return Ok(None) };
        if self.holder_before(&mut tx, id).await?.is_some() {
            return Ok(None);
        }
        if let Ok(message) = letter.message()
            && !handler.knows(&message.kind)
        {
            tracing::info!(dead_letter = %id, kind = %message.kind, "a held message waits for a process with a handler for its kind");
            return Ok(None);
        }
        let attempt =
            self.tables().attempt(&mut tx, letter.key()).await.map_err(failed("read the attempts"))?;
        if attempt.is_some() {
            // The clock may have changed since the last reading, for example with a failover.
            self.refresh_on(&mut tx).await?;
        }
        if attempt.as_ref().is_some_and(|attempt| self.waits(attempt)) {
            return Ok(None);
        }
        let (Some(message_id), Ok(tenant)) = (letter.message_id, Tenant::new(letter.tenant.as_str())) else {
            tracing::error!(dead_letter = %id, "a held message no longer has an id or tenant; discard it");
            return Ok(None);
        };
        let failures = attempt.map(|attempt| attempt.attempts);
        let letter = DeadLetter { attempts: failures.unwrap_or(0), ..letter };
        Ok(Some(HeldTurn { tx, letter, tenant, message_id, has_failed: failures.is_some() }))
    }

    /// Returns whether the next attempt is not due yet.
    fn waits(&self, attempt: &Attempt) -> bool {
        let now = self.window().now;
        attempt.next_at > now && attempt.next_at <= ahead(now, PAUSE_MAX)
    }

    /// Redrives a held message that is due.
    ///
    /// Its age does not matter: it cannot have taken effect. Its inbox row stopped copies while the
    /// inbox remembered its day; after that, copies are refused as too old.
    pub(crate) async fn apply_in_turn(
        &self,
        consumer: &ConsumerName,
        turn: HeldTurn<DB>,
        handler: &dyn Handler<DB>,
    ) -> Result<Resolution, RedriveError> {
        let HeldTurn { mut tx, letter, tenant, message_id, has_failed } = turn;
        let options = RedriveOptions { accept_late: true, after_dead_letter: AfterDeadLetter::HoldKey };
        let resolution = self.apply_letter(&mut tx, &letter, consumer, handler, options).await?;
        if has_failed {
            self.forget_failures(&mut tx, key(consumer, &tenant, message_id)).await?;
        }
        self.close(tx, letter.id, resolution).await?;
        Ok(resolution)
    }

    /// Turns a held message into an ordinary dead letter, which holds those behind it, and deletes
    /// its attempts, unless another message has its id. Returns whether it was still held: an
    /// operator may have decided about it meanwhile. Runs to its end even if this call is dropped.
    pub(crate) async fn fail_held(
        &self,
        consumer: &ConsumerName,
        id: DeadLetterId,
        message: MessageName<'_>,
        cause: Cause,
    ) -> Result<bool, StoreError> {
        let inbox = self.clone();
        let consumer = consumer.clone();
        let tenant = message.tenant.clone();
        let message_id = message.id;
        shield(async move {
            let failed = StoreError::during;
            let mut tx = inbox.begin_durable("begin storing a dead letter").await?;
            let rows = inbox
                .tables()
                .fail_held(&mut tx, id, &cause)
                .await
                .map_err(failed("dead-letter a held message"))?;
            if !cause.reason.spares_failures() {
                inbox.forget_failures(&mut tx, key(&consumer, &tenant, message_id)).await?;
            }
            tx.commit().await.map_err(failed("commit a dead letter"))?;
            Ok(rows > 0)
        })
        .await
    }

    async fn forget_failures(&self, connection: &mut DB::Connection, key: Key<'_>) -> Result<(), StoreError> {
        DB::forget_attempts(connection, self.tables(), &[key], Forget::All)
            .await
            .map_err(StoreError::during("delete the attempts of a held message"))
    }
}
