//! Stores a dead letter, with the inbox row that stops further copies of its message.

use message::{Committed, Delivery, Fingerprint, Message, shield};
use sqlx::Transaction;

use super::reason::{Cause, Reason, Resolution};
use super::record::DeadLetter;
use crate::attempts::Forget;
use crate::comparison::{Duplicate, identity};
use crate::day::Day;
use crate::dialect::{ChunkSet, Dialect, Inserted, NewRow};
use crate::ids::{ConsumerName, DeadLetterId, Key, Tenant};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// The outcome for a dead letter whose message gets an inbox row.
enum Outcome {
    /// It is stored, or does not have to be.
    Done(Committed),
    /// Nothing was done: the day of the row is forgotten.
    Forgotten,
    /// Nothing was done: the id was used with a different payload.
    Reused(Refusal),
}

impl<DB: Dialect> Inbox<DB> {
    /// Dead-letters a delivery in a separate transaction and returns the proof that settles it. If
    /// it was dead-lettered before, counts the delivery instead of storing it twice.
    ///
    /// A message that its handler rejected, that failed too often or that is held gets its inbox
    /// row in the same transaction. Further copies of it are duplicates, wherever they come from,
    /// until it is redriven. A message that another process has handled or held meanwhile is not
    /// held again. A message that should be held but cannot get a row is stored as
    /// [`Reason::TooOld`] or [`Reason::KeyReused`] instead, because a held message would later take
    /// effect automatically.
    ///
    /// # Errors
    /// [`StoreError`]; then the delivery must not be settled. Runs to its end even if this call is
    /// dropped.
    pub async fn dead_letter(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        delivery: &Delivery,
        cause: Cause,
    ) -> Result<Committed, StoreError> {
        let letter = DeadLetter::of(delivery, consumer, tenant, cause);
        self.store_letter(consumer, letter, None).await
    }

    /// Does the same as [`dead_letter`](Self::dead_letter), for a chunk that completed its message
    /// ([`Gathered::Whole`], [`AdmitError::Damaged`]). The dead letter holds the whole message, and
    /// the chunks are forgotten in the same transaction.
    ///
    /// [`Gathered::Whole`]: crate::Gathered::Whole
    /// [`AdmitError::Damaged`]: crate::AdmitError::Damaged
    ///
    /// # Errors
    /// As for [`dead_letter`](Self::dead_letter). Runs to its end even if this call is dropped.
    pub async fn dead_letter_whole(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        delivery: &Delivery,
        whole: &Message,
        cause: Cause,
    ) -> Result<Committed, StoreError> {
        self.store_whole_letter(consumer, tenant, delivery, whole, cause).await
    }

    /// Does the same as [`dead_letter_whole`](Self::dead_letter_whole).
    pub(crate) async fn store_whole_letter(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        delivery: &Delivery,
        whole: &Message,
        cause: Cause,
    ) -> Result<Committed, StoreError> {
        let of_whole = Delivery {
            token: delivery.token,
            message: Ok(Message { chunk: None, ..whole.clone() }),
            redelivered: delivery.redelivered,
            origin: delivery.origin.clone(),
        };
        let chunks = delivery.message.as_ref().ok().map(identity);
        let letter = DeadLetter::of(&of_whole, consumer, tenant, cause);
        self.store_letter(consumer, letter, chunks).await
    }

    /// Stores a dead letter. Forgets the chunks of its message that have the fingerprint `chunks`.
    pub(crate) async fn store_letter(
        &self,
        consumer: &ConsumerName,
        letter: DeadLetter,
        chunks: Option<Fingerprint>,
    ) -> Result<Committed, StoreError> {
        let inbox = self.clone();
        let consumer = consumer.clone();
        shield(async move {
            let Some(message) = letter.message().ok().filter(|_| letter.reason.has_row()) else {
                return inbox.store_letter_alone(&letter, chunks).await;
            };
            let without_row = match inbox.store_letter_with_row(&consumer, &letter, chunks, &message).await? {
                Outcome::Done(proof) => return Ok(proof),
                // Further copies are refused because of their time. Without a row, no record shows
                // that a held message took no effect, so an operator decides.
                Outcome::Forgotten if letter.reason == Reason::Held => {
                    let error = format!("its day was deleted before it could be {}", letter.error);
                    DeadLetter { reason: Reason::TooOld, error, ..letter }
                }
                Outcome::Forgotten => letter,
                Outcome::Reused(refusal) => {
                    let error = match letter.reason {
                        Reason::Held => refusal.to_string(),
                        _ => format!("{refusal}; before that: {}", letter.error),
                    };
                    DeadLetter { reason: Reason::from(&refusal), error, ..letter }
                }
            };
            inbox.store_letter_alone(&without_row, chunks).await
        })
        .await
    }

    /// Stores a dead letter without an inbox row.
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
        match self.insert_dead(&mut tx, letter.key(), letter_id, message).await? {
            Inserted::New { .. } => {}
            Inserted::Forgotten => {
                self.unlearn_day(Day::of_id(message.id));
                return Ok(Outcome::Forgotten);
            }
            Inserted::Exists(stored) => {
                match self.duplicate(&mut tx, stored, consumer, letter.key(), message).await? {
                    // Another process has handled or held it meanwhile: a duplicate; the
                    // transaction rolls back.
                    Ok(_) if is_held => return Ok(Outcome::Done(Committed::attest(letter.subject))),
                    // Another message has the id: no redrive can succeed, so no key waits for it.
                    Err(refusal) => return Ok(Outcome::Reused(refusal)),
                    // Another process has applied it meanwhile: there is nothing to decide, and its
                    // key does not have to wait.
                    Ok(Duplicate { dead_letter: None, .. }) => {
                        self.tables()
                            .resolve(&mut tx, letter_id, Resolution::Duplicate)
                            .await
                            .map_err(StoreError::during("close a dead letter"))?;
                    }
                    _ => {}
                }
            }
        }
        Ok(Outcome::Done(self.finish_letter(tx, letter).await?))
    }

    /// Begins the transaction of a dead letter: forgets the chunks of its message and stores it.
    /// Returns its id, or the id of the dead letter that its delivery already has.
    async fn begin_letter(
        &self,
        letter: &DeadLetter,
        chunks: Option<Fingerprint>,
    ) -> Result<(Transaction<'static, DB>, DeadLetterId), StoreError> {
        let mut tx = self.begin_durable("begin storing a dead letter").await?;
        let failed = StoreError::during;
        if let Some(fingerprint) = chunks {
            self.tables()
                .remove_set(&mut tx, ChunkSet { key: letter.key(), fingerprint })
                .await
                .map_err(failed("delete the chunks of a dead letter"))?;
        }
        // For a redelivery without an id, the broker does not identify which of several equal
        // arrivals it repeats. So one of their dead letters counts it.
        let repeated = if letter.is_nameless() {
            self.tables()
                .fingerprint_of_dead_letter(&mut tx, letter.key())
                .await
                .map_err(failed("find the dead letter of a redelivery"))?
        } else {
            None
        };
        let counted = repeated.map(|fingerprint| DeadLetter { fingerprint, ..letter.clone() });
        let id = self
            .tables()
            .store_dead_letter(&mut tx, counted.as_ref().unwrap_or(letter))
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
        if !letter.reason.spares_failures() {
            DB::forget_attempts(&mut tx, self.tables(), &[letter.key()], Forget::All)
                .await
                .map_err(failed("delete the attempts of a dead letter"))?;
        }
        // An earlier error would have ended this call, so the transaction is intact and COMMIT
        // commits.
        tx.commit().await.map_err(failed("commit a dead letter"))?;
        Ok(Committed::attest(letter.subject))
    }

    /// Inserts the row of a dead letter's message, with the content that copies are compared with,
    /// unless its key exists.
    pub(crate) async fn insert_dead(
        &self,
        tx: &mut Transaction<'_, DB>,
        key: Key<'_>,
        id: DeadLetterId,
        message: &Message,
    ) -> Result<Inserted, StoreError> {
        self.tables()
            .insert_dead(tx, NewRow { key, content: self.content(message) }, id)
            .await
            .map_err(StoreError::during("store the inbox row of a dead letter"))
    }
}
