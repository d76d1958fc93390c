//! Keys that a dead letter holds: which messages wait, and redriving them in their turn.
//!
//! Why that keeps the order stands in [`crate::held_keys`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use message::{Message, MessageId, OrderingKey, Topic};
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Instrument;

use super::failure::FailureKind;
use super::redrive::BoundedHandler;
use super::single::{Course, Failing, Noted};
use super::store::{Admitted, InboxStore, Store};
use super::worker::{NewDeadLetter, Worker, is_innocent};
use crate::attempts::error_text;
use crate::batch::Candidate;
use crate::day::back;
use crate::dead_letter::{DeadLetterId, Reason, Resolution};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::handler::Next;
use crate::held_keys::{FailedTurn, HeldKey, Turn};
use crate::name::Tenant;
use crate::store_error::StoreError;
use crate::within::within;

/// Keys that are looked at together.
const PAGE: u32 = 500;

/// How often every held key is looked at, whatever was closed.
const WALK_EVERY: Duration = Duration::from_secs(300);

/// How long closing a dead letter, or holding a message behind it, takes at most until others see
/// it.
const CLOSING_MAX: Duration = Duration::from_secs(30);

/// The memory of a process from one look for held messages to the next.
#[derive(Debug, Default)]
pub(super) struct HeldLook {
    /// Of those that fail.
    courses: HashMap<DeadLetterId, Course>,
    /// Those of the present walk over all keys.
    seen: HashSet<DeadLetterId>,
    /// The key behind which the walk goes on.
    after: Option<HeldKey>,
    /// When the last walk began, by the process and by the database.
    walked: Option<(Instant, OffsetDateTime)>,
}

/// Messages of one key that are redriven before other keys and operators have their turn.
const ROUNDS: usize = 10;

/// The operations of the runner on held messages. A store without any holds nothing.
pub trait HeldMessages: Send + Sync + 'static {
    /// Held messages with nothing of their key before them, one of a key, in the order of the keys;
    /// only keys behind `after`.
    fn held_in_turn(
        &self,
        _after: Option<&HeldKey>,
        _limit: u32,
    ) -> impl Future<Output = Result<Vec<(DeadLetterId, HeldKey)>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Whether any dead letter was closed since a moment of the database's clock.
    fn has_closed_since(
        &self,
        _since: OffsetDateTime,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// The first open dead letter that holds a key.
    fn first_of(
        &self,
        _key: &HeldKey,
    ) -> impl Future<Output = Result<Option<DeadLetterId>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Redrives a held message if it is its turn. An error says that nothing was begun; a message
    /// that was begun and not applied has [failed](Turn::Failed), whatever the reason.
    fn redrive_in_turn(
        &self,
        _letter: DeadLetterId,
    ) -> impl Future<Output = Result<Turn, StoreError>> + Send {
        std::future::ready(Ok(Turn::NotNow))
    }

    /// Makes a held message an ordinary dead letter. Whether it was held still.
    fn fail_held(
        &self,
        _letter: DeadLetterId,
        _message: (&Tenant, MessageId),
        _cause: (Reason, String, u32),
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

impl<DB: Dialect> HeldMessages for InboxStore<DB> {
    async fn held_in_turn(
        &self,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> Result<Vec<(DeadLetterId, HeldKey)>, StoreError> {
        let look = self.inbox.held_in_turn(&self.consumer, after, limit);
        self.within("look for held messages whose turn it is", look).await
    }

    async fn has_closed_since(&self, since: OffsetDateTime) -> Result<bool, StoreError> {
        let what = "look whether dead letters were closed";
        let look = async {
            let mut connection = self.inbox.acquire(what).await?;
            DB::has_closed_since(&mut connection, self.inbox.statements(), since)
                .await
                .map_err(StoreError::during(what))
        };
        self.within(what, look).await
    }

    async fn first_of(&self, key: &HeldKey) -> Result<Option<DeadLetterId>, StoreError> {
        self.within("look for what holds a key", self.inbox.holder(&self.consumer, key)).await
    }

    async fn redrive_in_turn(&self, letter: DeadLetterId) -> Result<Turn, StoreError> {
        let handler = BoundedHandler(self);
        let locking = self.inbox.lock_turn(letter, &handler);
        let Some(turn) = self.within("lock a held message", locking).await? else { return Ok(Turn::NotNow) };
        let failing = turn.failing();
        let applying = self.inbox.apply_in_turn(&self.consumer, turn, &handler);
        Ok(match within(self.redrive_max(), "redrive", applying).await {
            Ok(resolution) => Turn::Closed(resolution),
            Err(error) => Turn::Failed(Box::new(failing(error))),
        })
    }

    async fn fail_held(
        &self,
        letter: DeadLetterId,
        message: (&Tenant, MessageId),
        cause: (Reason, String, u32),
    ) -> Result<bool, StoreError> {
        let call = self.inbox.fail_held(&self.consumer, letter, message, cause);
        self.within("dead-letter", call).await
    }
}

/// The consequence of a redrive that failed.
enum Consequence {
    /// Nothing was learned about the message: the next look tries again.
    Later,
    /// It becomes an ordinary dead letter.
    Dead(Reason, String),
    /// It is tried again, within the bounds of any message.
    Failed(Failing, Box<dyn Error + Send + Sync>),
}

impl From<RedriveError> for Consequence {
    fn from(error: RedriveError) -> Self {
        match error {
            RedriveError::Handler(error) => match error.next() {
                Next::Reject => Self::Dead(Reason::Rejected, error_text(&error)),
                Next::Retry => Self::Failed((FailureKind::Own, error.delay()), error.into()),
                Next::Unavailable => Self::Failed((FailureKind::Unavailable, None), error.into()),
                Next::Database => Self::Failed((FailureKind::Database, None), error.into()),
            },
            RedriveError::Commit(error) => {
                let kind = if is_innocent(&error) { FailureKind::Database } else { FailureKind::Own };
                Self::Failed((kind, None), error.into())
            }
            RedriveError::Refused(refusal) => Self::Dead(Reason::from(&refusal), refusal.to_string()),
            RedriveError::NotAMessage { problem, .. } => Self::Dead(Reason::Poison, problem),
            RedriveError::Admit(error) => Self::Failed((FailureKind::Database, None), error.into()),
            RedriveError::Store(error) => Self::Failed((FailureKind::Database, None), error.into()),
            _ => Self::Later,
        }
    }
}

impl<S: Store> Worker<S> {
    /// The open dead letter that holds the key of an admitted message, where keys are held.
    pub(super) async fn holder(
        &self,
        tx: &mut S::Tx,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Option<DeadLetterId>, StoreError> {
        if !self.holds_keys || message.key.is_none() || !self.store.has_effect(message) {
            return Ok(None);
        }
        let candidate = Candidate { tenant: tenant.clone(), message };
        Ok(self.store.holders(tx, &[candidate]).await?.into_iter().next().flatten())
    }

    /// The places of those fresh messages of an admitted batch that must not be handled in it: a
    /// dead letter holds their key, or something of their key before them was refused and becomes
    /// one.
    pub(super) async fn held_places(
        &self,
        tx: &mut S::Tx,
        candidates: &[Candidate<'_>],
        admissions: &[Option<Admitted<S::Guard>>],
    ) -> Result<HashSet<usize>, StoreError> {
        let mut held = HashSet::new();
        if !self.holds_keys {
            return Ok(held);
        }
        let mut refused: HashSet<(&Tenant, &Topic, &OrderingKey)> = HashSet::new();
        let (mut places, mut fresh) = (Vec::new(), Vec::new());
        for (at, (candidate, admission)) in candidates.iter().zip(admissions).enumerate() {
            let Candidate { tenant, message } = candidate;
            let Some(key) = &message.key else { continue };
            let key = (tenant, &message.topic, key);
            let is_idle = !self.store.has_effect(candidate.message);
            match admission {
                None => {
                    refused.insert(key);
                }
                Some(Ok(_)) if is_idle => {}
                Some(Ok(_)) if refused.contains(&key) => {
                    held.insert(at);
                }
                Some(Ok(_)) => {
                    places.push(at);
                    fresh.push(candidate.clone());
                }
                Some(Err(_)) => {}
            }
        }
        if !fresh.is_empty() {
            let holders = self.store.holders(tx, &fresh).await?;
            held.extend(places.into_iter().zip(holders).filter_map(|(at, holder)| holder.map(|_| at)));
        }
        Ok(held)
    }

    /// Redrives held messages whose turn it is, and those behind them, until `ends_at`; the next
    /// look goes on from there. Returns whether there may be more.
    ///
    /// One that fails in any way leaves the others their turn: only a database that is away before
    /// anything is begun ends the look.
    pub(super) async fn redrive_held(
        &self,
        look: &mut HeldLook,
        ends_at: Instant,
    ) -> Result<bool, StoreError> {
        if look.after.is_none() {
            if !self.is_look_due(look).await? {
                return Ok(false);
            }
            look.walked = Some((Instant::now(), self.store.now()));
            look.seen.clear();
        }
        let mut is_any_closed = false;
        loop {
            let page = self.store.held_in_turn(look.after.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE as usize;
            let mut left = page.len() * ROUNDS;
            let mut in_turn: VecDeque<_> =
                page.into_iter().map(|(letter, key)| (letter, key, true)).collect();
            while let Some((letter, key, is_of_page)) = in_turn.pop_front() {
                if Instant::now() >= ends_at {
                    return Ok(true);
                }
                if is_of_page {
                    look.after = Some(key.clone());
                }
                look.seen.insert(letter);
                let span = tracing::info_span!("redrive", consumer = %self.consumer, dead_letter = %letter);
                if !self.take_turn(letter, &mut look.courses).instrument(span).await? {
                    continue;
                }
                is_any_closed = true;
                left = left.saturating_sub(1);
                if left > 0
                    && let Some(next) = self.store.first_of(&key).await?
                {
                    in_turn.push_back((next, key, false));
                }
            }
            if is_last {
                let HeldLook { courses, seen, after, .. } = look;
                courses.retain(|letter, _| seen.contains(letter));
                *after = None;
                return Ok(is_any_closed);
            }
        }
    }

    /// Whether a held message may have its turn that had none when all were looked at last: then
    /// something was closed since, or one is tried again. Looking at all reads every held key.
    async fn is_look_due(&self, look: &HeldLook) -> Result<bool, StoreError> {
        let Some((walked, at)) = look.walked else { return Ok(true) };
        if !look.courses.is_empty() || walked.elapsed() >= WALK_EVERY {
            return Ok(true);
        }
        // A dead letter closed at that moment may have been committed after it, and a message may
        // have seen it open and be held since.
        self.store.has_closed_since(back(at, CLOSING_MAX)).await
    }

    /// Redrives a held message if it is its turn. Whether it is closed now.
    async fn take_turn(
        &self,
        letter: DeadLetterId,
        courses: &mut HashMap<DeadLetterId, Course>,
    ) -> Result<bool, StoreError> {
        let begun_at = Instant::now();
        let failed = match self.store.redrive_in_turn(letter).await {
            Ok(Turn::Closed(resolution)) => {
                match resolution {
                    Resolution::Duplicate => self.meter.duplicates(1),
                    _ => self.succeeded(1, begun_at.elapsed()),
                }
                courses.remove(&letter);
                return Ok(true);
            }
            Ok(Turn::NotNow) => return Ok(false),
            Ok(Turn::Failed(failed)) => *failed,
            Err(error) if error.is_transient() => return Err(error),
            // Of this one only: others have their turn.
            Err(error) => {
                tracing::error!(error = error_text(&error), "a held message was not redriven");
                return Ok(false);
            }
        };
        let FailedTurn { tenant, message_id, failures, error } = failed;
        if matches!(&error, RedriveError::Handler(error) if error.is_timeout()) {
            self.meter.timed_out();
        }
        let dead = match Consequence::from(error) {
            Consequence::Later => return Ok(false),
            Consequence::Dead(reason, error) => {
                self.meter.failed();
                NewDeadLetter::new(reason, error, failures.saturating_add(1))
            }
            Consequence::Failed(failing, error) => {
                let course = courses.entry(letter).or_default();
                match self.count_failure((&tenant, message_id), course, (failing, &*error)).await {
                    Ok(Noted::Dead(dead)) => dead,
                    Ok(Noted::Counted(_)) => return Ok(false),
                    Ok(Noted::Uncounted) => {
                        self.meter.outage();
                        let error = error_text(&*error);
                        tracing::warn!(error, "not done, not counted; trying again");
                        return Ok(false);
                    }
                    Err(unnoted) => {
                        let (error, unnoted) = (error_text(&*error), error_text(&unnoted));
                        tracing::warn!(error, unnoted, "a failure was not noted");
                        return Ok(false);
                    }
                }
            }
        };
        let NewDeadLetter { reason, error, attempts, .. } = dead;
        match self.store.fail_held(letter, (&tenant, message_id), (reason, error.clone(), attempts)).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(unstored) => {
                tracing::warn!(
                    error,
                    unstored = error_text(&unstored),
                    "a held message was not dead-lettered"
                );
                return Ok(false);
            }
        }
        self.meter.dead(reason);
        tracing::error!(%message_id, %reason, attempts, error, "a held message was dead-lettered");
        courses.remove(&letter);
        Ok(false)
    }
}
