//! Discards dead letters, so that no further copy of their messages takes effect.

use std::time::Duration;

use message::ahead;

use super::decision::{Action, DecidedLetter, Redriven, Signature};
use super::reason::Resolution;
use super::record::DeadLetter;
use crate::comparison::compare;
use crate::day::Day;
use crate::dialect::{Dialect, Inserted};
use crate::error::RedriveError;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum time ahead of now for which a day is created. It is a day less than the database's own
/// limit, so that the database accepts the day even if its clock differs.
const AHEAD_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A decision that is recorded, but not committed.
struct Noted<DB: Dialect> {
    tx: InboxTransaction<DB>,
    resolution: Resolution,
}

impl<DB: Dialect> Inbox<DB> {
    /// Discards a dead letter for good: no further copy of its message takes effect. Stores the
    /// decision with the person who made it.
    ///
    /// Closes it as [`Resolution::Duplicate`] when the message has already taken effect: then there
    /// is nothing to repair. A chunk, an incomplete message, a malformed delivery and one without a
    /// tenant do not identify a whole message, so later deliveries of it are not stopped.
    ///
    /// # Errors
    /// [`RedriveError`]; the dead letter is unchanged. [`RedriveError::InHand`] while a redrive of
    /// it runs for longer than half the [call timeout](crate::InboxOptions::call_timeout).
    pub async fn discard(&self, id: DeadLetterId, signature: &Signature) -> Result<Redriven, RedriveError> {
        signature.check()?;
        let noting = Box::pin(self.note_discard(id, signature));
        let noted: Result<_, RedriveError> = self.in_time("note a decision", noting).await;
        match noted.map_err(|error| error.of_decision(id))? {
            Ok(Noted { tx, resolution }) => self.close(tx, id, resolution).await,
            Err(before) => Ok(before),
        }
    }

    /// Records a decision and its outcome, in a transaction to commit. For a closed dead letter,
    /// returns how it was closed.
    async fn note_discard(
        &self,
        id: DeadLetterId,
        signature: &Signature,
    ) -> Result<Result<Noted<DB>, Redriven>, RedriveError> {
        let mut tx = self.begin_decision().await?;
        let letter = match self.open_letter(&mut tx, id).await? {
            Ok(letter) => letter,
            Err(before) => return Ok(Err(before)),
        };
        let resolution = self.give_up(&mut tx, &letter).await?;
        let outcome = Some(resolution.as_str().to_owned());
        let closed = DecidedLetter { outcome, ..DecidedLetter::of(&letter) };
        let noted = self.tables().note_decision(&mut tx, signature, Action::Discard, &closed).await;
        noted.map_err(StoreError::during("note a decision"))?;
        Ok(Ok(Noted { tx, resolution }))
    }

    /// Prevents the message of a dead letter from taking effect, or finds that it already has.
    pub(crate) async fn give_up(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
    ) -> Result<Resolution, RedriveError> {
        let Ok(message) = letter.message() else { return Ok(Resolution::Discarded) };
        let day = Day::of_id(message.id);
        if !DB::DAYS_ARE_IMPLICIT && self.is_beyond(day) {
            self.refresh_on(tx).await?;
            if self.is_beyond(day) {
                // No row can be stored for a day that far ahead: until then, copies are refused
                // because of their time.
                return Ok(Resolution::Discarded);
            }
        }
        if !self.knows_day(day) {
            self.ensure_day(day).await.map_err(|error| RedriveError::Admit(error.into()))?;
        }
        if !self.knows_day(day) {
            // Its day is forgotten, so further copies are refused because of their time.
            return Ok(Resolution::Discarded);
        }
        match self.insert_dead(tx.as_sqlx(), letter.key(), letter.id, &message).await? {
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
}

fn consumer_of(letter: &DeadLetter) -> Result<ConsumerName, RedriveError> {
    ConsumerName::new(letter.consumer.as_str())
        .map_err(|error| RedriveError::NotAMessage { id: letter.id, problem: error.to_string() })
}
