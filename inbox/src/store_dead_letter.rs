//! Storing a dead letter, with the inbox row that stops further copies of its message.

use message::{Committed, Delivery, Fingerprint, Message, shield};
use sqlx::Transaction;

use crate::day::Day;
use crate::dead_letter::{DeadLetter, DeadLetterId, Reason, Resolution};
use crate::dialect::{ChunkSet, Dialect, Inserted, Key};
use crate::guard::{Duplicate, identity};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// The outcome of a letter whose message gets an inbox row.
enum Outcome {
    /// It is stored, or there was no need to.
    Done(Committed),
    /// Nothing was done: the day of the row is forgotten.
    Forgotten,
    /// Nothing was done: the id is that of another payload.
    Reused(Refusal),
}

impl<DB: Dialect> Inbox<DB> {
    /// Dead-letters a delivery in a transaction of its own and returns the proof that settles it.
    /// One that was dead-lettered before is counted and not stored twice.
    ///
    /// A message whose handler rejected it or failed too often, or that is held, gets its inbox row
    /// in the same transaction: further copies of it are duplicates, wherever they come from, until
    /// it is redriven. One that another process has handled or held meanwhile is not held again. A
    /// message that is to be held and cannot get a row is no held one, which would take effect by
    /// itself: it is stored as [`Reason::TooOld`], or as [`Reason::KeyReused`].
    ///
    /// # Errors
    /// [`StoreError`]; the delivery must not be settled then. Runs to its end even if this call is
    /// dropped.
    pub async fn dead_letter(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        delivery: &Delivery,
        cause: (Reason, String, u32),
    ) -> Result<Committed, StoreError> {
        self.store_letter(consumer, DeadLetter::of(delivery, consumer, scope, cause), None).await
    }

    /// As [`dead_letter`](Self::dead_letter), for a chunk that made its message whole
    /// ([`Gathered::Whole`], [`AdmitError::Damaged`]): the letter holds the whole message, and the
    /// chunks are forgotten in the same transaction.
    ///
    /// [`Gathered::Whole`]: crate::Gathered::Whole
    /// [`AdmitError::Damaged`]: crate::AdmitError::Damaged
    ///
    /// # Errors
    /// As for [`dead_letter`](Self::dead_letter). Runs to its end even if this call is dropped.
    pub async fn dead_letter_whole(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        delivery: &Delivery,
        whole: &Message,
        cause: (Reason, String, u32),
    ) -> Result<Committed, StoreError> {
        let message = Message { chunk: None, ..whole.clone() };
        let origin = delivery.origin.clone();
        let of_whole = Delivery {
            token: delivery.token,
            message: Ok(message),
            redelivered: delivery.redelivered,
            origin,
        };
        let chunks = delivery.message.as_ref().ok().map(identity);
        self.store_letter(consumer, DeadLetter::of(&of_whole, consumer, scope, cause), chunks).await
    }

    /// Stores a letter; forgets the chunks of its message with this fingerprint, if there is one.
    async fn store_letter(
        &self,
        consumer: &ConsumerName,
        letter: DeadLetter,
        chunks: Option<Fingerprint>,
    ) -> Result<Committed, StoreError> {
        let (inbox, consumer) = (self.clone(), consumer.clone());
        shield(async move {
            let has_row = matches!(letter.reason, Reason::Poison | Reason::Rejected | Reason::Held);
            let Some(message) = letter.message().ok().filter(|_| has_row) else {
                return inbox.store_letter_alone(&letter, chunks).await;
            };
            let without_row = match inbox.store_letter_with_row(&consumer, &letter, chunks, &message).await? {
                Outcome::Done(proof) => return Ok(proof),
                // Further copies are refused by their time. Without a row nothing says that a held
                // message took no effect, so a person decides.
                Outcome::Forgotten if letter.reason == Reason::Held => {
                    let error = format!("its day was forgotten before it could be {}", letter.error);
                    DeadLetter { reason: Reason::TooOld, error, ..letter }
                }
                Outcome::Forgotten => letter,
                Outcome::Reused(refusal) => {
                    DeadLetter { reason: Reason::from(&refusal), error: refusal.to_string(), ..letter }
                        .told_apart()
                }
            };
            inbox.store_letter_alone(&without_row, chunks).await
        })
        .await
    }

    /// Stores a letter without an inbox row.
    async fn store_letter_alone(
        &self,
        letter: &DeadLetter,
        chunks: Option<Fingerprint>,
    ) -> Result<Committed, StoreError> {
        let (tx, _) = self.begin_letter(letter, chunks).await?;
        self.finish_letter(tx, letter).await
    }

    async fn store_letter_with_row(
        &self,
        consumer: &ConsumerName,
        letter: &DeadLetter,
        chunks: Option<Fingerprint>,
        message: &Message,
    ) -> Result<Outcome, StoreError> {
        let (mut tx, letter_id) = self.begin_letter(letter, chunks).await?;
        let is_held = letter.reason == Reason::Held;
        match self.insert_dead(&mut tx, (letter.key(), letter_id), message).await? {
            Inserted::New { .. } => {}
            Inserted::Forgotten => {
                self.unlearn_day(Day::of_id(message.id));
                return Ok(Outcome::Forgotten);
            }
            Inserted::Exists(stored) => {
                match self.duplicate(&mut tx, stored, (consumer, letter.key()), message).await? {
                    // Handled or held by another process meanwhile: one more copy, and rolled back.
                    Ok(_) if is_held => return Ok(Outcome::Done(Committed::attest(letter.subject))),
                    Err(refusal) if is_held => return Ok(Outcome::Reused(refusal)),
                    // It took effect in another process meanwhile: nothing is to be decided, and
                    // its key does not wait.
                    Ok(Duplicate { dead_letter: None, .. }) => {
                        DB::resolve(&mut tx, self.statements(), letter_id, Resolution::Duplicate)
                            .await
                            .map_err(StoreError::during("close a dead letter"))?;
                    }
                    _ => {}
                }
            }
        }
        Ok(Outcome::Done(self.finish_letter(tx, letter).await?))
    }

    /// Begins the transaction of a letter: the chunks of its message are forgotten in it, and the
    /// letter is stored, under its own id or under that of the letter which its delivery has.
    async fn begin_letter(
        &self,
        letter: &DeadLetter,
        chunks: Option<Fingerprint>,
    ) -> Result<(Transaction<'static, DB>, DeadLetterId), StoreError> {
        let mut tx = self.begin_raw("begin a dead letter").await?;
        let failed = StoreError::during;
        if let Some(fingerprint) = chunks {
            DB::remove_set(&mut tx, self.statements(), ChunkSet { key: letter.key(), fingerprint })
                .await
                .map_err(failed("forget the chunks of a dead letter"))?;
        }
        // A redelivery without an id: the broker does not say which of several equal arrivals it
        // repeats, and one of their letters counts it.
        let repeated = if letter.is_nameless() {
            DB::fingerprint_of_dead_letter(&mut tx, self.statements(), letter.key())
                .await
                .map_err(failed("look for the dead letter of a redelivery"))?
        } else {
            None
        };
        let counted = repeated.map(|fingerprint| DeadLetter { fingerprint, ..letter.clone() });
        let id = DB::store_dead_letter(&mut tx, self.statements(), counted.as_ref().unwrap_or(letter))
            .await
            .map_err(failed("store a dead letter"))?;
        Ok((tx, id))
    }

    async fn finish_letter(
        &self,
        mut tx: Transaction<'static, DB>,
        letter: &DeadLetter,
    ) -> Result<Committed, StoreError> {
        let failed = StoreError::during;
        DB::forget_attempts(&mut tx, self.statements(), &[letter.key()], true)
            .await
            .map_err(failed("forget the attempts of a dead letter"))?;
        // An error before ended the call, so the transaction is intact and COMMIT commits.
        tx.commit().await.map_err(failed("commit a dead letter"))?;
        Ok(Committed::attest(letter.subject))
    }

    /// Inserts the row of a dead letter's message, unless its key is there, with what its copies
    /// are compared with.
    pub(crate) async fn insert_dead(
        &self,
        tx: &mut Transaction<'_, DB>,
        (key, id): (Key<'_>, DeadLetterId),
        message: &Message,
    ) -> Result<Inserted, StoreError> {
        DB::insert_dead(tx, self.statements(), key, self.content(message), id)
            .await
            .map_err(StoreError::during("store the inbox row of a dead letter"))
    }
}
