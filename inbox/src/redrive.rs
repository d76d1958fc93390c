//! Redriving dead letters, exactly once as well.
//!
//! The handler runs in this process, with the same message id. Its effect commits in one
//! transaction with the inbox row and the mark that closes the dead letter. A second redrive, or a
//! late delivery at the same time, finds the row or the mark.

use std::time::Duration;

use message::Message;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::{Forget, InHand, error_text};
use crate::day::{Day, ahead};
use crate::dead_letter::{DeadLetter, DeadLetterId, Resolution};
use crate::decision::{Action, Decision, Signature};
use crate::dialect::{Dialect, Inserted, Key};
use crate::error::{AdmitError, OpenError, RedriveError};
use crate::guard::{Admission, Duplicate, Guard, compare};
use crate::handler::{Handler, refuse_swallowed};
use crate::held_keys::AfterDeadLetter;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::received::Received;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum time ahead of now for which a day is created. It is a day less than the database's own
/// limit, whatever the time is there.
const AHEAD_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Options of a redrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RedriveOptions {
    /// Whether to apply a message that is older than the inbox remembers. First find out whether it
    /// took effect: the inbox knows only what it still has a dead letter of. The dead letter
    /// becomes the record of the effect, so redriving it, or another one of the same message, does
    /// nothing.
    pub accept_late: bool,
    /// The option of the consumer. When the consumer holds keys, a dead letter is not redriven
    /// while an earlier one of its key is open.
    pub after_dead_letter: AfterDeadLetter,
}

/// The outcome of redriving or discarding a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redriven {
    /// It was open and is closed now.
    Now(Resolution),
    /// Another process carried out the request at the same time; nothing was done.
    Elsewhere,
    /// It was already closed; nothing was done.
    Before {
        /// How.
        resolution: Resolution,
        /// When.
        at: OffsetDateTime,
    },
}

/// The outcome of starting a requested redrive.
pub(crate) enum Taken {
    /// Another process has it, or has carried it out.
    Elsewhere,
    /// The dead letter is closed, missing, or has no message id.
    Unnamed,
    /// The database records that another process has the message in hand.
    OfAnother(Uuid),
    /// The database now records that the process has the message in hand.
    Noted {
        /// Its dead letter.
        letter: Box<DeadLetter>,
        /// Why it is dead-lettered without another attempt.
        given_up: Option<String>,
    },
}

/// The process that has the message of a dead letter in hand.
pub(crate) enum Hand {
    /// The asking process, as is noted now.
    Own {
        /// Why the message is given up, once too many processes have ended with it in hand.
        given_up: Option<String>,
    },
    /// Another process. It is about to lock the dead letter, or has ended.
    OfAnother(Uuid),
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

    /// Notes, before the handler runs, that a process carries out a requested redrive. If the
    /// handler ends the process, the next process finds the note. `ended` is a process that has
    /// ended: its note is taken over.
    pub(crate) async fn take_request(
        &self,
        request: &Decision,
        process: Uuid,
        ended: Option<Uuid>,
    ) -> Result<Taken, StoreError> {
        let failed = StoreError::during;
        let what = "record what is redriven";
        let mut tx = self.begin_raw(what).await?;
        if !DB::is_requested(&mut tx, self.statements(), request.number).await.map_err(failed(what))? {
            return Ok(Taken::Elsewhere);
        }
        let letter = DB::dead_letter(&mut tx, self.statements(), request.dead_letter, false)
            .await
            .map_err(failed(what))?;
        // Without a message id there is no handler to run.
        let named = letter.filter(|letter| letter.resolved.is_none() && letter.message_id.is_some());
        let Some(letter) = named else { return Ok(Taken::Unnamed) };
        let given_up = match self.take_letter(&mut tx, &letter, process, ended).await? {
            Hand::Own { given_up } => given_up,
            Hand::OfAnother(owner) => return Ok(Taken::OfAnother(owner)),
        };
        tx.commit().await.map_err(failed(what))?;
        Ok(Taken::Noted { letter: Box::new(letter), given_up })
    }

    /// Records that a process has the message of a dead letter in hand, unless another process has
    /// recorded that. Takes over the note of the process `ended`, and counts its end.
    ///
    /// The caller holds the lock of the dead letter or of its request. That alone does not show
    /// that the other process has ended: it releases the lock for a moment when it commits its
    /// note.
    pub(crate) async fn take_letter(
        &self,
        connection: &mut DB::Connection,
        letter: &DeadLetter,
        process: Uuid,
        ended: Option<Uuid>,
    ) -> Result<Hand, StoreError> {
        let (failed, keys) = (StoreError::during("record what is redriven"), [letter.key()]);
        let take = async {
            let taken = DB::take_in_hand(connection, self.statements(), &keys, process).await?;
            let owner = taken.first().and_then(|taken: &InHand| taken.owner);
            let Some(owner) = owner.filter(|owner| ended == Some(*owner)) else { return Ok(taken) };
            DB::take_over(connection, self.statements(), keys[0], owner, process).await?;
            DB::take_in_hand(connection, self.statements(), &keys, process).await
        };
        let taken = take.await.map_err(failed)?;
        let taken = taken.first();
        Ok(match taken.and_then(|taken| taken.owner) {
            Some(owner) => Hand::OfAnother(owner),
            None => Hand::Own { given_up: taken.and_then(InHand::given_up) },
        })
    }

    /// Removes the note of a process that has not begun, because another process was faster.
    pub(crate) async fn leave_letter(&self, key: Key<'_>, process: Uuid) -> Result<(), StoreError> {
        let what = "note that a redrive has not begun";
        let mut connection = self.acquire(what).await?;
        DB::put_down(&mut connection, self.statements(), &[key], process)
            .await
            .map_err(StoreError::during(what))
    }

    /// Removes the note, because the process survived the handler. Failures stay, unless the
    /// message is over: it took effect, or was given up and counting restarts with the next
    /// decision.
    pub(crate) async fn put_letter_down(&self, key: Key<'_>, is_over: bool) -> Result<(), StoreError> {
        let what = "record that a redrive has ended";
        let mut connection = self.acquire(what).await?;
        let forget = if is_over { Forget::All } else { Forget::Unnoted };
        DB::forget_attempts(&mut connection, self.statements(), &[key], forget)
            .await
            .map_err(StoreError::during(what))
    }

    /// Carries out a requested redrive and notes its outcome. Returns false when another process
    /// carries it out, or has done so.
    pub(crate) async fn carry_out(
        &self,
        consumer: &ConsumerName,
        request: &Decision,
        handler: &dyn Handler<DB>,
        after_dead_letter: AfterDeadLetter,
    ) -> Result<bool, StoreError> {
        let Decision { number, dead_letter: id, accept_late, .. } = *request;
        let options = RedriveOptions { accept_late, after_dead_letter };
        let outcome = match self.redrive_as(consumer, id, handler, options, Some(number)).await {
            Ok(Redriven::Now(_)) => return Ok(true),
            Ok(Redriven::Elsewhere) => return Ok(false),
            Ok(Redriven::Before { resolution, .. }) => resolution.to_string(),
            // The request stays open, so it is tried again; that attempt finds whatever was
            // committed.
            Err(RedriveError::Commit(error)) if !error.is_rolled_back() => {
                tracing::warn!(dead_letter = %id, error = error_text(&error), "the outcome of a redrive is unknown");
                return Ok(true);
            }
            Err(error @ RedriveError::UnknownKind { .. }) => {
                tracing::info!(dead_letter = %id, %error, "a redrive waits for a process with a handler for the message's kind");
                return Ok(true);
            }
            Err(RedriveError::Commit(error)) if error.is_innocent() => {
                tracing::info!(dead_letter = %id, error = error_text(&error), "a redrive is tried again");
                return Ok(true);
            }
            Err(
                RedriveError::Store(error)
                | RedriveError::Admit(AdmitError::Store(error) | AdmitError::Day(OpenError::Store(error))),
            ) if error.is_transient() => return Err(error),
            Err(error @ RedriveError::Admit(AdmitError::Expired { .. })) => {
                tracing::info!(dead_letter = %id, %error, "a redrive is tried again");
                return Ok(true);
            }
            Err(error) => error.report(),
        };
        tracing::warn!(dead_letter = %id, outcome, "a requested redrive had no effect");
        self.fail_request(number, &outcome).await.map(|()| true)
    }

    async fn redrive_as(
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
            && !DB::is_requested(&mut tx, self.statements(), number)
                .await
                .map_err(failed("read a request"))?
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
            DB::finish_request(&mut tx, self.statements(), number, resolution.as_str())
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
        let id = letter.id;
        let message = owned_message(letter, consumer)?;
        let scope = scope_of(letter)?;
        let admitted = match tx.take_over(consumer, &scope, &message, id).await? {
            Some(guard) => Some((Some(guard), Resolution::Applied)),
            None => self.admit_again(tx, letter, consumer, &message, options).await?,
        };
        let Some((guard, resolution)) = admitted else { return Ok(Resolution::Duplicate) };
        if resolution == Resolution::AppliedLate
            && self.took_effect_before(tx, consumer, letter, &message).await?
        {
            return Ok(Resolution::Duplicate);
        }
        if guard.is_none() {
            tx.mark().await?;
        }
        let received = Received::after(letter.attempts, consumer.clone(), scope, &message);
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

    /// Discards a dead letter for good: no further copy of its message takes effect. Stores the
    /// decision with the person who made it.
    ///
    /// Closes it as [`Resolution::Duplicate`] when the message has already taken effect: then there
    /// is nothing to repair. A chunk, an incomplete message, a malformed delivery and one without a
    /// tenant do not identify a whole message, so later deliveries of it are not stopped.
    ///
    /// # Errors
    /// [`RedriveError`]; the dead letter is unchanged.
    pub async fn discard(&self, id: DeadLetterId, signature: &Signature) -> Result<Redriven, RedriveError> {
        signature.check()?;
        let failed = StoreError::during;
        let mut tx = self.begin().await?;
        let letter = match self.open_letter(&mut tx, id).await? {
            Ok(letter) => letter,
            Err(before) => return Ok(before),
        };
        let resolution = self.give_up(&mut tx, &letter).await?;
        let decision = Decision {
            outcome: Some(resolution.as_str().to_owned()),
            ..Decision::new((id, &letter.consumer), Action::Discard, signature)
        };
        DB::note_decision(&mut tx, self.statements(), &decision).await.map_err(failed("note a decision"))?;
        self.close(tx, id, resolution).await
    }

    /// Prevents the message of a dead letter from taking effect, or finds that it already has.
    async fn give_up(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
    ) -> Result<Resolution, RedriveError> {
        let Ok(message) = letter.message() else { return Ok(Resolution::Discarded) };
        let day = Day::of_id(message.id);
        if !DB::DAYS_ARE_IMPLICIT && self.is_beyond(day) {
            self.refresh_on(tx).await?;
            if self.is_beyond(day) {
                // No row can be stored for a day that far ahead: until then, copies are refused by
                // their time.
                return Ok(Resolution::Discarded);
            }
        }
        if !self.knows_day(day) {
            self.ensure_day(day).await.map_err(|error| RedriveError::Admit(error.into()))?;
        }
        if !self.knows_day(day) {
            // Its day is forgotten, so further copies are refused by their time.
            return Ok(Resolution::Discarded);
        }
        match self.insert_dead(tx.as_sqlx(), (letter.key(), letter.id), &message).await? {
            Inserted::Exists(stored) if stored.dead_letter.is_none() => {
                let consumer = consumer_of(letter)?;
                let is_same = compare(stored, &consumer, &message, self.options().sources).is_ok();
                Ok(if is_same { Resolution::Duplicate } else { Resolution::Discarded })
            }
            Inserted::Forgotten if !DB::DAYS_ARE_IMPLICIT => {
                Err(RedriveError::Admit(self.forgotten(tx.as_sqlx(), message.id).await?))
            }
            _ => Ok(Resolution::Discarded),
        }
    }

    /// Returns whether a day is too far ahead for the database to create it.
    fn is_beyond(&self, day: Day) -> bool {
        day > Day::of(ahead(self.window().now, AHEAD_MAX))
    }

    pub(crate) async fn open_letter(
        &self,
        tx: &mut InboxTransaction<DB>,
        id: DeadLetterId,
    ) -> Result<Result<DeadLetter, Redriven>, RedriveError> {
        let letter = DB::dead_letter(tx, self.statements(), id, true)
            .await
            .map_err(StoreError::during("read a dead letter"))?
            .ok_or(RedriveError::NotFound { id })?;
        Ok(match letter.resolved {
            Some((resolution, at)) => Err(Redriven::Before { resolution, at }),
            None => Ok(letter),
        })
    }

    /// Returns `None` for a duplicate. Otherwise returns the resolution and the guard; there is no
    /// guard when the id is too old for an inbox row.
    async fn admit_again(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
        consumer: &ConsumerName,
        message: &Message,
        options: RedriveOptions,
    ) -> Result<Option<(Option<Guard<DB>>, Resolution)>, RedriveError> {
        let id = letter.id;
        let scope = &scope_of(letter)?;
        let admitted = if options.accept_late {
            tx.admit_late(consumer, scope, message).await
        } else {
            tx.admit(consumer, scope, message).await
        };
        match admitted {
            Ok(Admission::Fresh(guard)) => Ok(Some((Some(guard), Resolution::Applied))),
            // Another dead letter stopped this message. It has not taken effect, so this one waits
            // for that one's decision.
            Ok(Admission::Duplicate(Duplicate { dead_letter: Some(other), .. })) => {
                Err(RedriveError::StoppedBy { id, other })
            }
            Ok(Admission::Duplicate(_)) => Ok(None),
            // Refused by its time alone, before any statement that could abort the transaction.
            Err(AdmitError::Refused(Refusal::TooOld { .. })) if options.accept_late => {
                Ok(Some((None, Resolution::AppliedLate)))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn close(
        &self,
        mut tx: InboxTransaction<DB>,
        id: DeadLetterId,
        resolution: Resolution,
    ) -> Result<Redriven, RedriveError> {
        let failed = StoreError::during;
        // This statement fails in an aborted transaction, so the commit below commits.
        let rows = DB::resolve(&mut tx, self.statements(), id, resolution)
            .await
            .map_err(failed("close a dead letter"))?;
        if rows != 1 {
            return Err(RedriveError::NotFound { id });
        }
        // The proofs are for deliveries; a dead letter was settled when it was stored.
        drop(tx.commit().await?);
        tracing::info!(dead_letter = %id, %resolution, "dead letter closed");
        Ok(Redriven::Now(resolution))
    }
}

fn scope_of(letter: &DeadLetter) -> Result<Tenant, RedriveError> {
    Tenant::new(letter.scope.as_str())
        .map_err(|error| RedriveError::NotAMessage { id: letter.id, problem: error.to_string() })
}

fn consumer_of(letter: &DeadLetter) -> Result<ConsumerName, RedriveError> {
    ConsumerName::new(letter.consumer.as_str())
        .map_err(|error| RedriveError::NotAMessage { id: letter.id, problem: error.to_string() })
}

fn owned_message(letter: &DeadLetter, consumer: &ConsumerName) -> Result<Message, RedriveError> {
    let id = letter.id;
    if letter.consumer != consumer.as_str() {
        let (owner, asked) = (letter.consumer.clone(), consumer.as_str().to_owned());
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
