//! Redriving dead letters, exactly once as well.
//!
//! The handler runs in this process, with the same message id. Its effect commits in one
//! transaction with the inbox row and the mark that closes the dead letter. A second redrive, or a
//! late delivery at the same time, finds the row or the mark.

use message::Message;

use super::decision::Redriven;
use super::options::RedriveOptions;
use super::reason::Resolution;
use super::record::DeadLetter;
use crate::comparison::Duplicate;
use crate::dialect::Dialect;
use crate::error::{AdmitError, RedriveError};
use crate::error_text::error_text;
use crate::guard::{Admission, Guard};
use crate::handler::{Handler, Received, refuse_swallowed};
use crate::ids::{ConsumerName, DeadLetterId, Tenant};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// The message of a dead letter, admitted to take effect.
struct AdmittedLetter<DB: Dialect> {
    /// Its guard; `None` when the id is too old for an inbox row.
    guard: Option<Guard<DB>>,
    /// How the dead letter is closed after the effect.
    resolution: Resolution,
}

impl<DB: Dialect> AdmittedLetter<DB> {
    fn with_row(guard: Guard<DB>) -> Self {
        Self { guard: Some(guard), resolution: Resolution::Applied }
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Runs the handler on a dead letter's message.
    ///
    /// # Errors
    /// [`RedriveError`]. Nothing took effect and the dead letter stays open, except after
    /// [`CommitError::Unknown`](crate::CommitError::Unknown): then redrive again, which does
    /// nothing if the first redrive succeeded.
    pub async fn redrive(
        &self,
        consumer: &ConsumerName,
        id: DeadLetterId,
        handler: &dyn Handler<DB>,
        options: RedriveOptions,
    ) -> Result<Redriven, RedriveError> {
        self.redrive_as(consumer, id, handler, options, None).await
    }

    /// Redrives a dead letter. With the number of a request, redrives it only if that request is
    /// open, and closes the request too.
    pub(crate) async fn redrive_as(
        &self,
        consumer: &ConsumerName,
        id: DeadLetterId,
        handler: &dyn Handler<DB>,
        options: RedriveOptions,
        request: Option<i64>,
    ) -> Result<Redriven, RedriveError> {
        let failed = StoreError::during;
        let mut tx = self.begin().await?;
        // Check the request first. Otherwise a process that waits for the dead letter of another
        // process's request would occupy a connection, only to find it closed.
        if let Some(number) = request
            && !self.tables().is_requested(&mut tx, number).await.map_err(failed("read a request"))?
        {
            return Ok(Redriven::Elsewhere);
        }
        let letter = match self.open_letter(&mut tx, id).await? {
            Ok(letter) => letter,
            Err(before) => return Ok(before),
        };
        let kind = owned_message(&letter, consumer)?.kind;
        self.check_turn(&mut tx, &letter, options.after_dead_letter).await?;
        if !handler.knows(&kind) {
            return Err(RedriveError::UnknownKind { id, kind });
        }
        let resolution = self.apply_letter(&mut tx, &letter, consumer, handler, options).await?;
        if let Some(number) = request {
            self.tables()
                .finish_request(&mut tx, number, resolution.as_str())
                .await
                .map_err(failed("store the outcome of a redrive"))?;
        }
        self.close(tx, id, resolution).await
    }

    /// Applies the message of an open dead letter, unless it has taken effect, and takes over its
    /// row.
    pub(crate) async fn apply_letter(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
        consumer: &ConsumerName,
        handler: &dyn Handler<DB>,
        options: RedriveOptions,
    ) -> Result<Resolution, RedriveError> {
        let message = owned_message(letter, consumer)?;
        let tenant = tenant_of(letter)?;
        let admitted = match tx.take_over(consumer, &tenant, &message, letter.id).await? {
            Some(guard) => Some(AdmittedLetter::with_row(guard)),
            None => self.admit_again(tx, letter, consumer, &message, options).await?,
        };
        let Some(AdmittedLetter { guard, resolution }) = admitted else {
            return Ok(Resolution::Duplicate);
        };
        if resolution == Resolution::AppliedLate
            && self.took_effect_before(tx, consumer, letter, &message).await?
        {
            return Ok(Resolution::Duplicate);
        }
        if guard.is_none() {
            tx.mark().await?;
        }
        let received = Received::after(letter.attempts, consumer.clone(), tenant, &message);
        let handled =
            handler.handle_delivery(tx, &message, &received).await.map_err(RedriveError::Handler)?;
        refuse_swallowed(tx).map_err(RedriveError::Handler)?;
        // In a transaction that the handler ended, what follows would be stored without its effect.
        tx.check_rows().await?;
        if let (Some(guard), Some(result)) = (guard, handled) {
            guard.complete(tx, &result).await?;
        }
        Ok(resolution)
    }

    /// Locks an open dead letter; for a closed one, returns how it was closed.
    pub(crate) async fn open_letter(
        &self,
        tx: &mut InboxTransaction<DB>,
        id: DeadLetterId,
    ) -> Result<Result<DeadLetter, Redriven>, RedriveError> {
        let letter = self
            .tables()
            .dead_letter(tx, id, true)
            .await
            .map_err(StoreError::during("read a dead letter"))?
            .ok_or(RedriveError::NotFound { id })?;
        Ok(match letter.resolved {
            Some((resolution, at)) => Err(Redriven::Before { resolution, at }),
            None => Ok(letter),
        })
    }

    /// Admits the message of a dead letter that has no inbox row. Returns `None` for a duplicate.
    async fn admit_again(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
        consumer: &ConsumerName,
        message: &Message,
        options: RedriveOptions,
    ) -> Result<Option<AdmittedLetter<DB>>, RedriveError> {
        let id = letter.id;
        let tenant = &tenant_of(letter)?;
        let admitted = if options.accept_late {
            tx.admit_late(consumer, tenant, message).await
        } else {
            tx.admit(consumer, tenant, message).await
        };
        match admitted {
            Ok(Admission::Fresh(guard)) => Ok(Some(AdmittedLetter::with_row(guard))),
            // Another dead letter stopped this message. It has not taken effect, so this one waits
            // for that one's decision.
            Ok(Admission::Duplicate(Duplicate { dead_letter: Some(other), .. })) => {
                Err(RedriveError::StoppedBy { id, other })
            }
            Ok(Admission::Duplicate(_)) => Ok(None),
            // Refused by its time alone, before any statement that could abort the transaction.
            Err(AdmitError::Refused(Refusal::TooOld { .. })) if options.accept_late => {
                Ok(Some(AdmittedLetter { guard: None, resolution: Resolution::AppliedLate }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Closes a dead letter and commits.
    pub(crate) async fn close(
        &self,
        mut tx: InboxTransaction<DB>,
        id: DeadLetterId,
        resolution: Resolution,
    ) -> Result<Redriven, RedriveError> {
        let what = "close a dead letter";
        // This statement would fail in an aborted transaction, so the commit below really commits.
        let closing =
            async { self.tables().resolve(&mut tx, id, resolution).await.map_err(StoreError::during(what)) };
        if self.in_time(what, closing).await? != 1 {
            return Err(RedriveError::NotFound { id });
        }
        // The proofs are for deliveries; a dead letter was settled when it was stored.
        drop(tx.commit().await?);
        tracing::info!(dead_letter = %id, %resolution, "dead letter closed");
        Ok(Redriven::Now(resolution))
    }
}

fn tenant_of(letter: &DeadLetter) -> Result<Tenant, RedriveError> {
    Tenant::new(letter.tenant.as_str())
        .map_err(|error| RedriveError::NotAMessage { id: letter.id, problem: error.to_string() })
}

fn owned_message(letter: &DeadLetter, consumer: &ConsumerName) -> Result<Message, RedriveError> {
    let id = letter.id;
    if letter.consumer != consumer.as_str() {
        let owner = letter.consumer.clone();
        let asked = consumer.as_str().to_owned();
        return Err(RedriveError::OtherConsumer { id, owner, asked });
    }
    letter.message().map_err(|problem| RedriveError::NotAMessage { id, problem })
}

impl RedriveError {
    /// Returns the error and its sources in one line.
    #[must_use]
    pub fn report(&self) -> String {
        error_text(self)
    }
}
