//! Many dead letters at once: what matches a filter, and decisions about it.
//!
//! Letters are found by walking the open ones in the order of their ids. A call looks at a bounded
//! number of them, whatever the filter leaves.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use message::shield;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterId, Reason, Resolution};
use crate::decision::{Action, Decision, Requested, Signature};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::redrive::{RedriveOptions, Redriven};
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum open dead letters that one call looks at, whatever the filter is.
pub const LETTERS_LOOKED_AT_MAX: u32 = 10_000;
/// Maximum dead letters that [`Inbox::survey`] counts.
pub const LETTERS_SURVEYED_MAX: u32 = 1_000_000;
/// Dead letters of each consumer, from each end, whose errors [`Inbox::survey`] groups.
pub const LETTERS_GROUPED_MAX: u32 = 5_000;
/// Maximum requests that one transaction stores.
pub const REQUESTED_MAX: usize = 500;
/// Maximum dead letters that one transaction discards. Consumers of their messages wait for it.
pub const DISCARDED_MAX: usize = 50;

/// The longest age that a condition may name: a hundred years.
const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Conditions on open dead letters. All must hold; without any, all match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterFilter {
    /// The consumer.
    pub consumer: Option<ConsumerName>,
    /// The tenant.
    pub scope: Option<Tenant>,
    /// The topic or queue.
    pub topic: Option<String>,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: Option<String>,
    /// The reason.
    pub reason: Option<String>,
    /// Texts that the error contains, in this order. SQLite ignores the case of ASCII letters.
    pub error_parts: Vec<String>,
    /// Only letters that died longer ago. At most a hundred years count.
    pub older_than: Option<Duration>,
    /// Only letters that died no longer ago. At most a hundred years count.
    pub newer_than: Option<Duration>,
    /// Only letters that died before this moment of the database's clock. Ages are measured at this
    /// moment as well.
    pub as_of: Option<OffsetDateTime>,
}

impl LetterFilter {
    /// Returns the pattern that errors with all parts match.
    pub(crate) fn error_pattern(&self) -> Option<String> {
        migrations::query::like_pattern(&self.error_parts)
    }

    /// Returns the conditions about ages, as every database can take them.
    pub(crate) fn ages(&self) -> [Option<Duration>; 2] {
        [self.older_than, self.newer_than].map(|age| age.map(|age| age.min(AGE_MAX)))
    }
}

/// A part of the open dead letters.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterSlice<T> {
    /// The letters that match.
    pub letters: Vec<T>,
    /// The beginning of the next slice; `None` after the last letter.
    pub next: Option<DeadLetterId>,
}

/// An open dead letter, as far as a decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLetter {
    /// Its id.
    pub id: DeadLetterId,
    /// Its place in the order of arrival.
    pub seq: i64,
    /// Its consumer.
    pub consumer: String,
    /// Its topic or queue.
    pub topic: String,
    /// Why it was dead-lettered.
    pub reason: Reason,
    /// When it was dead-lettered.
    pub dead_at: OffsetDateTime,
    /// Its error, if the filter asks for a part of it.
    pub error: Option<String>,
}

/// Open dead letters with the same topic, reason and error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterGroup {
    /// Their topic or queue.
    pub topic: String,
    /// Why they were dead-lettered.
    pub reason: String,
    /// The first 300 characters of the error.
    pub error: String,
    /// Their number.
    pub count: u64,
    /// When the first of them died.
    pub first: OffsetDateTime,
    /// When the last of them died.
    pub last: OffsetDateTime,
}

/// The number of open dead letters that match a filter, and their errors.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterSurvey {
    /// The database's time before it counted.
    pub at: OffsetDateTime,
    /// The number of letters that match.
    pub count: u64,
    /// Whether there may be more: only [`LETTERS_SURVEYED_MAX`] letters are looked at.
    pub is_at_least: bool,
    /// Groups of the [`LETTERS_GROUPED_MAX`] letters from each end.
    pub groups: Vec<LetterGroup>,
    /// Whether the groups may leave out letters in the middle.
    pub is_sample: bool,
}

/// The result of one decision about many dead letters, as the audit has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterDecision {
    /// Who decided, and why.
    pub signature: Signature,
    /// The choice.
    pub action: Action,
    /// Number of letters decided about.
    pub count: u64,
    /// When the first of them was decided about.
    pub first: OffsetDateTime,
    /// When the last of them was decided about.
    pub last: OffsetDateTime,
    /// Number of letters for which the consumer has not carried out the request yet.
    pub waiting: u64,
    /// Number of letters that are still open after their request was carried out.
    pub failed: u64,
    /// Number of letters that were closed, by the way in which they were.
    pub closed: Vec<ClosedCount>,
}

/// A number of dead letters that were closed in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedCount {
    /// The way.
    pub resolution: Resolution,
    /// The number.
    pub count: u64,
}

/// A decision about many dead letters.
#[derive(Debug, Clone)]
pub struct ManyDecided {
    /// Who decides, and why.
    pub signature: Signature,
    /// The id of the decision. Sent twice, a confirmation is one decision: a letter is requested
    /// again only under another id.
    pub id: Uuid,
}

impl<DB: Dialect> Inbox<DB> {
    /// Returns the next open dead letters that match, oldest first, without their payloads: at most
    /// `limit`. Looks at [`LETTERS_LOOKED_AT_MAX`] letters, so a slice can be empty and still have
    /// a next one. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>, StoreError> {
        let what = "list the dead letters";
        let mut connection = self.acquire(what).await?;
        self.tables()
            .open_letters(&mut connection, filter, after, limit)
            .await
            .map_err(StoreError::during(what))
    }

    /// Returns the next open dead letters that match, for a decision. Looks at
    /// [`LETTERS_LOOKED_AT_MAX`] letters, and returns all of these that match. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn choose_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>, StoreError> {
        let what = "choose dead letters";
        let mut connection = self.acquire(what).await?;
        self.tables().choose_letters(&mut connection, filter, after).await.map_err(StoreError::during(what))
    }

    /// Counts the open dead letters that match, and groups their errors. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn survey(&self, filter: &LetterFilter) -> Result<LetterSurvey, StoreError> {
        let what = "count the dead letters";
        let mut connection = self.acquire(what).await?;
        self.tables().survey_letters(&mut connection, filter).await.map_err(StoreError::during(what))
    }

    /// Returns the result of a decision about dead letters, of one consumer or of all; `None` when
    /// it changed nothing. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decision(
        &self,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>, StoreError> {
        let what = "read a decision about dead letters";
        let mut connection = self.acquire(what).await?;
        self.tables().letter_decision(&mut connection, id, consumer).await.map_err(StoreError::during(what))
    }

    /// Asks consumers to redrive dead letters, in one transaction: at most [`REQUESTED_MAX`].
    /// Returns the answer of [`request_redrive`](Self::request_redrive) for each, in their order.
    ///
    /// # Errors
    /// [`RedriveError`] for a problem that concerns all of them. Nothing was stored then, except
    /// after [`CommitError::Unknown`](crate::CommitError::Unknown): ask for the
    /// [`decision`](Self::decision). Runs to its end even if this call is dropped.
    pub async fn request_redrives(
        &self,
        ids: &[DeadLetterId],
        options: RedriveOptions,
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Requested, RedriveError>>, RedriveError> {
        decided.signature.check()?;
        let inbox = self.clone();
        let (ids, decided) = (ids.to_vec(), decided.clone());
        shield(async move {
            let failed = StoreError::during;
            let mut tx = inbox.begin().await?;
            let letters = inbox.lock_letters(&mut tx, &ids).await?;
            let mut verdicts = Vec::with_capacity(ids.len());
            for id in &ids {
                verdicts.push(inbox.verdict(&mut tx, *id, letters.get(id), options).await?);
            }
            let is_wanted = |(_, verdict): &(&DeadLetterId, &Verdict)| matches!(verdict, Verdict::Request);
            let wanted: Vec<Uuid> = ids.iter().zip(&verdicts).filter(is_wanted).map(|(id, _)| id.0).collect();
            let noted = inbox.tables().note_requests(&mut tx, &wanted, options.accept_late, &decided).await;
            let noted: HashSet<Uuid> = noted.map_err(failed("note requests"))?.into_iter().collect();
            drop(tx.commit().await?);
            let answer = |(id, verdict): (&DeadLetterId, Verdict)| match verdict {
                Verdict::Request if noted.contains(&id.0) => Ok(Requested::Now),
                Verdict::Request => Ok(Requested::Already),
                Verdict::Closed(closed) => Ok(Requested::Closed(closed)),
                Verdict::Refused(error) => Err(error),
            };
            Ok(ids.iter().zip(verdicts).map(answer).collect())
        })
        .await
    }

    /// Locks dead letters, in the order of their ids, so that two operators never deadlock.
    async fn lock_letters(
        &self,
        tx: &mut InboxTransaction<DB>,
        ids: &[DeadLetterId],
    ) -> Result<HashMap<DeadLetterId, DeadLetter>, RedriveError> {
        let mut sorted: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        sorted.sort_unstable();
        let letters = self.tables().lock_letters(tx, &sorted).await;
        let letters = letters.map_err(StoreError::during("read dead letters"))?;
        Ok(letters.into_iter().map(|letter| (letter.id, letter)).collect())
    }

    /// Returns whether a locked dead letter can be redriven.
    async fn verdict(
        &self,
        tx: &mut InboxTransaction<DB>,
        id: DeadLetterId,
        letter: Option<&DeadLetter>,
        options: RedriveOptions,
    ) -> Result<Verdict, RedriveError> {
        let Some(letter) = letter else { return Ok(Verdict::Refused(RedriveError::NotFound { id })) };
        if let Some((resolution, at)) = letter.resolved {
            return Ok(Verdict::Closed(Redriven::Before { resolution, at }));
        }
        if let Err(problem) = letter.message() {
            return Ok(Verdict::Refused(RedriveError::NotAMessage { id, problem }));
        }
        match self.check_turn(tx, letter, options.after_dead_letter).await {
            Ok(()) => Ok(Verdict::Request),
            Err(error @ RedriveError::Held { .. }) => Ok(Verdict::Refused(error)),
            Err(error) => Err(error),
        }
    }

    /// Discards dead letters in the given order, in one transaction: at most [`DISCARDED_MAX`]. If
    /// one of them cannot be discarded, each is discarded by itself. Returns the answer of
    /// [`discard`](Self::discard) for each.
    ///
    /// # Errors
    /// [`RedriveError`] for a problem that concerns all of them. Nothing was changed then, except
    /// after [`CommitError::Unknown`](crate::CommitError::Unknown): ask for the
    /// [`decision`](Self::decision).
    pub async fn discard_all(
        &self,
        ids: &[DeadLetterId],
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Redriven, RedriveError>>, RedriveError> {
        decided.signature.check()?;
        match self.discard_together(ids, decided).await {
            Ok(discarded) => return Ok(discarded.into_iter().map(Ok).collect()),
            Err(error) if concerns_all(&error) => return Err(error),
            Err(_) => {}
        }
        let mut discarded = Vec::with_capacity(ids.len());
        for id in ids {
            let done = self.discard_together(&[*id], decided).await;
            match done {
                Err(error) if concerns_all(&error) && discarded.is_empty() => return Err(error),
                done => discarded.push(done.map(|done| done.first().copied().unwrap_or(Redriven::Elsewhere))),
            }
        }
        Ok(discarded)
    }

    async fn discard_together(
        &self,
        ids: &[DeadLetterId],
        decided: &ManyDecided,
    ) -> Result<Vec<Redriven>, RedriveError> {
        let failed = StoreError::during;
        let mut tx = self.begin().await?;
        let mut discarded = Vec::with_capacity(ids.len());
        for id in ids {
            let letter = match self.open_letter(&mut tx, *id).await? {
                Ok(letter) => letter,
                Err(before) => {
                    discarded.push(before);
                    continue;
                }
            };
            let resolution = self.give_up(&mut tx, &letter).await?;
            let decision = Decision {
                outcome: Some(resolution.as_str().to_owned()),
                decision: Some(decided.id),
                ..Decision::new(&letter, Action::Discard, &decided.signature)
            };
            self.tables().note_decision(&mut tx, &decision).await.map_err(failed("note a decision"))?;
            let closed = self.tables().resolve(&mut tx, *id, resolution).await;
            if closed.map_err(failed("close a dead letter"))? != 1 {
                return Err(RedriveError::NotFound { id: *id });
            }
            discarded.push(Redriven::Now(resolution));
        }
        // The proofs are for deliveries; a dead letter was settled when it was stored.
        drop(tx.commit().await?);
        Ok(discarded)
    }
}

/// Returns whether a problem is not that of one dead letter.
fn concerns_all(error: &RedriveError) -> bool {
    match error {
        RedriveError::Commit(error) => !error.is_rolled_back(),
        RedriveError::Store(error) => error.is_transient(),
        _ => false,
    }
}

/// The verdict about one dead letter of a request.
enum Verdict {
    Request,
    Closed(Redriven),
    Refused(RedriveError),
}
