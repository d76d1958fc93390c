//! Decisions about many dead letters at once.

use std::collections::{HashMap, HashSet};

use message::shield;
use uuid::Uuid;

use super::decision::{Action, DecidedLetter, ManyDecided, Redriven, Requested, SeenLetter};
use super::options::RedriveOptions;
use super::record::DeadLetter;
use crate::dialect::Dialect;
use crate::error::{AdmitError, RedriveError};
use crate::ids::DeadLetterId;
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum requests that one transaction stores.
pub const REQUESTED_MAX: usize = 500;
/// Maximum dead letters that one transaction discards. Consumers of their messages wait for it.
pub const DISCARDED_MAX: usize = 50;

impl<DB: Dialect> Inbox<DB> {
    /// Asks consumers to redrive dead letters, in one transaction: at most [`REQUESTED_MAX`]. If
    /// one of them is in hand for half the [call timeout](crate::InboxOptions::call_timeout), each
    /// is requested separately, and waits for its share of that time. Returns the answer of
    /// [`request_redrive`](Self::request_redrive) for each, in their order. A problem of the
    /// database ends that: then there are fewer answers, and the last one is the problem.
    ///
    /// # Errors
    /// [`RedriveError`] for a problem that concerns all of them. Nothing was stored then, except
    /// after [`CommitError::Unknown`](crate::CommitError::Unknown): ask for the
    /// [`decision`](Self::decision). Runs to its end even if this call is dropped.
    pub async fn request_redrives(
        &self,
        letters: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Requested, RedriveError>>, RedriveError> {
        decided.signature.check()?;
        let inbox = self.clone();
        let seen = letters.to_vec();
        let decided = decided.clone();
        shield(async move { inbox.request_all(&seen, options, &decided).await }).await
    }

    async fn request_all(
        &self,
        seen: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Requested, RedriveError>>, RedriveError> {
        if seen.len() > 1 {
            match self.request_together(seen, options, decided, 1).await {
                Err(error) if error.is_of_lock() => {}
                answers => return answers,
            }
        }
        let mut answers = Vec::with_capacity(seen.len());
        for letter in seen {
            let alone = std::slice::from_ref(letter);
            let answer = match self.request_together(alone, options, decided, count(seen)).await {
                Ok(mut answers) => answers.pop().unwrap_or(Err(RedriveError::NotFound { id: letter.id })),
                Err(error) if concerns_all(&error) && answers.is_empty() => return Err(error),
                Err(error) => Err(error.of_decision(letter.id)),
            };
            let is_over = answer.as_ref().is_err_and(concerns_all);
            answers.push(answer);
            if is_over {
                break;
            }
        }
        Ok(answers)
    }

    /// Requests redrives in one transaction, which is one of `all` decisions.
    async fn request_together(
        &self,
        seen: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
        all: u32,
    ) -> Result<Vec<Result<Requested, RedriveError>>, RedriveError> {
        let noting = Box::pin(self.note_requests(seen, options, decided, all));
        let Requests { tx, verdicts, noted } = self.in_time("note requests", noting).await?;
        drop(tx.commit().await?);
        let answer = |(letter, verdict): (&SeenLetter, Verdict)| match verdict {
            Verdict::Request if noted.contains(&letter.id.0) => Ok(Requested::Now),
            Verdict::Request => Ok(Requested::Already),
            Verdict::Closed(closed) => Ok(Requested::Closed(closed)),
            Verdict::Refused(error) => Err(error),
        };
        Ok(seen.iter().zip(verdicts).map(answer).collect())
    }

    /// Records requests, in a transaction to commit.
    async fn note_requests(
        &self,
        seen: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
        all: u32,
    ) -> Result<Requests<DB>, RedriveError> {
        let mut tx = self.begin_decision_of(all).await?;
        let letters = self.lock_letters(&mut tx, seen).await?;
        let mut verdicts = Vec::with_capacity(seen.len());
        for letter in seen {
            verdicts.push(self.verdict(&mut tx, *letter, letters.get(&letter.id), options).await?);
        }
        let is_wanted = |(_, verdict): &(&SeenLetter, &Verdict)| matches!(verdict, Verdict::Request);
        let wanted = seen.iter().zip(&verdicts).filter(is_wanted);
        let wanted: Vec<Uuid> = wanted.map(|(letter, _)| letter.id.0).collect();
        if options.accept_late {
            let replaced = self.tables().replace_requests(&mut tx, &wanted, Some(decided.id)).await;
            replaced.map_err(StoreError::during("replace requests"))?;
        }
        let noted = self.tables().note_requests(&mut tx, &wanted, options.accept_late, decided).await;
        let noted = noted.map_err(StoreError::during("note requests"))?.into_iter().collect();
        Ok(Requests { tx, verdicts, noted })
    }

    /// Locks dead letters, in the order of their ids, so that two operators never deadlock.
    async fn lock_letters(
        &self,
        tx: &mut InboxTransaction<DB>,
        seen: &[SeenLetter],
    ) -> Result<HashMap<DeadLetterId, DeadLetter>, RedriveError> {
        let mut sorted: Vec<Uuid> = seen.iter().map(|letter| letter.id.0).collect();
        sorted.sort_unstable();
        let letters = self.tables().lock_letters(tx, &sorted).await;
        let letters = letters.map_err(StoreError::during("read dead letters"))?;
        Ok(letters.into_iter().map(|letter| (letter.id, letter)).collect())
    }

    /// Returns whether a locked dead letter can be redriven.
    async fn verdict(
        &self,
        tx: &mut InboxTransaction<DB>,
        seen: SeenLetter,
        letter: Option<&DeadLetter>,
        options: RedriveOptions,
    ) -> Result<Verdict, RedriveError> {
        let id = seen.id;
        let Some(letter) = letter else { return Ok(Verdict::Refused(RedriveError::NotFound { id })) };
        if let Some((resolution, at)) = letter.resolved {
            return Ok(Verdict::Closed(Redriven::Before { resolution, at }));
        }
        if let Err(error) = seen.check(letter) {
            return Ok(Verdict::Refused(error));
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
    /// one of them cannot be discarded, or is in hand for half the [call
    /// timeout](crate::InboxOptions::call_timeout), each is discarded separately, and waits for its
    /// share of that time. Returns the answer of [`discard`](Self::discard) for each. A problem of
    /// the database ends that: then there are fewer answers, and the last one is the problem.
    ///
    /// # Errors
    /// [`RedriveError`] for a problem that concerns all of them. Nothing was changed then, except
    /// after [`CommitError::Unknown`](crate::CommitError::Unknown): ask for the
    /// [`decision`](Self::decision).
    pub async fn discard_all(
        &self,
        letters: &[SeenLetter],
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Redriven, RedriveError>>, RedriveError> {
        decided.signature.check()?;
        if letters.len() > 1 {
            match self.discard_together(letters, decided, 1).await {
                Ok(discarded) => return Ok(discarded.into_iter().map(Ok).collect()),
                Err(error) if concerns_all(&error) => return Err(error),
                Err(_) => {}
            }
        }
        let mut discarded = Vec::with_capacity(letters.len());
        for letter in letters {
            let alone = std::slice::from_ref(letter);
            let done = match self.discard_together(alone, decided, count(letters)).await {
                Ok(done) => Ok(done.first().copied().unwrap_or(Redriven::Elsewhere)),
                Err(error) if concerns_all(&error) && discarded.is_empty() => return Err(error),
                Err(error) => Err(error.of_decision(letter.id)),
            };
            let is_over = done.as_ref().is_err_and(concerns_all);
            discarded.push(done);
            if is_over {
                break;
            }
        }
        Ok(discarded)
    }

    /// Discards in one transaction, which is one of `all` decisions.
    async fn discard_together(
        &self,
        letters: &[SeenLetter],
        decided: &ManyDecided,
        all: u32,
    ) -> Result<Vec<Redriven>, RedriveError> {
        let noting = Box::pin(self.note_discards(letters, decided, all));
        let Discards { tx, discarded } = self.in_time("discard dead letters", noting).await?;
        // The proofs are for deliveries; a dead letter was settled when it was stored.
        drop(tx.commit().await?);
        Ok(discarded)
    }

    /// Records discards and closes their dead letters, in a transaction to commit.
    async fn note_discards(
        &self,
        letters: &[SeenLetter],
        decided: &ManyDecided,
        all: u32,
    ) -> Result<Discards<DB>, RedriveError> {
        let failed = StoreError::during;
        let mut tx = self.begin_decision_of(all).await?;
        // Operators who discard the same ones in another order wait for each other.
        self.lock_letters(&mut tx, letters).await?;
        let mut discarded = Vec::with_capacity(letters.len());
        for seen in letters {
            let letter = match self.open_letter(&mut tx, seen.id).await? {
                Ok(letter) => letter,
                Err(before) => {
                    discarded.push(before);
                    continue;
                }
            };
            seen.check(&letter)?;
            let resolution = self.give_up(&mut tx, &letter).await?;
            let closed = DecidedLetter {
                outcome: Some(resolution.as_str().to_owned()),
                decision: Some(decided.id),
                ..DecidedLetter::of(&letter)
            };
            let (tables, signature) = (self.tables(), &decided.signature);
            let noted = tables.note_decision(&mut tx, signature, Action::Discard, &closed).await;
            noted.map_err(failed("note a decision"))?;
            // This statement would fail in an aborted transaction, so the following commit really
            // commits.
            let closed = self.tables().resolve(&mut tx, seen.id, resolution).await;
            if closed.map_err(failed("close a dead letter"))? != 1 {
                return Err(RedriveError::NotFound { id: seen.id });
            }
            discarded.push(Redriven::Now(resolution));
        }
        Ok(Discards { tx, discarded })
    }
}

/// Requests that are recorded, but not committed.
struct Requests<DB: Dialect> {
    tx: InboxTransaction<DB>,
    verdicts: Vec<Verdict>,
    /// The dead letters of the new requests.
    noted: HashSet<Uuid>,
}

/// Discards that are recorded, but not committed.
struct Discards<DB: Dialect> {
    tx: InboxTransaction<DB>,
    discarded: Vec<Redriven>,
}

fn count(letters: &[SeenLetter]) -> u32 {
    u32::try_from(letters.len()).unwrap_or(u32::MAX)
}

/// Returns whether a problem concerns more than one dead letter. A lock does not: a redrive or a
/// handler of the message holds it.
fn concerns_all(error: &RedriveError) -> bool {
    match error {
        error if error.is_of_lock() => false,
        RedriveError::Commit(error) => !error.is_rolled_back(),
        RedriveError::Store(error) | RedriveError::Admit(AdmitError::Store(error)) => error.is_transient(),
        _ => false,
    }
}

/// The decision about one dead letter of a request.
enum Verdict {
    Request,
    Closed(Redriven),
    Refused(RedriveError),
}
