//! Keys that a dead letter holds: which messages wait, and redriving them in order.
//!
//! [`crate::held_keys`] explains why that keeps the order.

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
use super::store::{Admitted, BEGINS_WITHIN, InboxStore, Store};
use super::worker::{NewDeadLetter, Worker, of_staged};
use crate::attempts::error_text;
use crate::batch::Candidate;
use crate::day::back;
use crate::dead_letter::{DeadLetterId, Reason, Resolution};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::handler::{HandlerError, Next};
use crate::held_keys::{FailedTurn, HeldFirst, HeldKey, NotedTurn, Turn};
use crate::name::Tenant;
use crate::store_error::StoreError;
use crate::within::within;

/// Maximum number of keys per read.
const BATCH: u32 = 500;

/// Interval at which every held key is checked, even if nothing was closed.
const WALK_EVERY: Duration = Duration::from_secs(300);

/// Maximum number of dead letters closed since the last check for which only their keys are
/// checked.
const CLOSED_MAX: u32 = 1_000;

/// Maximum time until others see that a dead letter was closed, or that a message is held behind
/// it.
const CLOSING_MAX: Duration = Duration::from_secs(30);

/// State of a process between checks for held messages.
#[derive(Debug, Default)]
pub(super) struct HeldLook {
    /// The attempts of held messages that fail.
    courses: HashMap<DeadLetterId, (HeldKey, Course)>,
    /// Held messages seen by the current walk over all keys.
    seen: HashSet<DeadLetterId>,
    /// The key after which the walk continues.
    after: Option<HeldKey>,
    /// When the last walk began.
    walked: Option<Instant>,
    /// Time up to which closed dead letters have been checked, by the database's clock.
    looked: Option<OffsetDateTime>,
}

/// Held messages to redrive now, and those behind them.
struct Turns {
    queue: VecDeque<InTurn>,
    /// How many more may be closed before other keys and operators have their turn.
    left: usize,
    is_any_closed: bool,
}

struct InTurn {
    letter: DeadLetterId,
    key: HeldKey,
    /// Whether the walk has reached its key.
    is_of_walk: bool,
}

impl Turns {
    fn of(firsts: impl IntoIterator<Item = (DeadLetterId, HeldKey)>, is_of_walk: bool) -> Self {
        let in_turn = |(letter, key)| InTurn { letter, key, is_of_walk };
        let queue: VecDeque<_> = firsts.into_iter().map(in_turn).collect();
        Self { left: queue.len() * ROUNDS, queue, is_any_closed: false }
    }
}

/// Maximum number of messages of one key that are redriven before other keys and operators have
/// their turn.
const ROUNDS: usize = 10;

/// The operations of the runner on held messages. By default a store holds no messages.
pub trait HeldMessages: Send + Sync + 'static {
    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    fn held_firsts(
        &self,
        _after: Option<&HeldKey>,
        _limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldFirst>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the keys that had a dead letter closed since a moment of the database's clock;
    /// `None` when `limit` or more dead letters were closed.
    fn keys_closed_since(
        &self,
        _since: OffsetDateTime,
        _limit: u32,
    ) -> impl Future<Output = Result<Option<HashSet<HeldKey>>, StoreError>> + Send {
        std::future::ready(Ok(Some(HashSet::new())))
    }

    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn firsts_of(
        &self,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>, StoreError>> + Send {
        std::future::ready(Ok(vec![None; keys.len()]))
    }

    /// Redrives a held message if it is due. After an error, nothing was begun. A message that was
    /// begun and not applied has [failed](Turn::Failed), whatever the reason.
    fn redrive_in_turn(
        &self,
        _letter: DeadLetterId,
    ) -> impl Future<Output = Result<Turn, StoreError>> + Send {
        std::future::ready(Ok(Turn::NotNow))
    }

    /// Turns a held message into an ordinary dead letter. Returns whether it was still held.
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
    async fn held_firsts(&self, after: Option<&HeldKey>, limit: u32) -> Result<Vec<HeldFirst>, StoreError> {
        let look = self.inbox.held_firsts(&self.consumer, after, limit);
        self.within("look for held messages whose turn it is", look).await
    }

    async fn keys_closed_since(
        &self,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Option<HashSet<HeldKey>>, StoreError> {
        let look = self.inbox.keys_closed_since(&self.consumer, since, limit);
        self.within("look whether dead letters were closed", look).await
    }

    async fn firsts_of(&self, keys: &[HeldKey]) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        self.within("look for what holds a key", self.inbox.holders_of_keys(&self.consumer, keys)).await
    }

    async fn redrive_in_turn(&self, letter: DeadLetterId) -> Result<Turn, StoreError> {
        let handler = BoundedHandler(self);
        let lock = || self.within("lock a held message", self.inbox.lock_turn(letter, &handler));
        let mut ended = None;
        let noted = loop {
            let Some(turn) = lock().await? else { return Ok(Turn::NotNow) };
            let noting = turn.note(&self.inbox, self.process, ended);
            match self.within("note what is redriven", noting).await? {
                NotedTurn::Own { given_up: Some(failed), .. } => return Ok(Turn::Failed(Box::new(failed))),
                NotedTurn::Own { letter, given_up: None } => break letter,
                NotedTurn::OfAnother(owner) => {
                    tokio::time::sleep(BEGINS_WITHIN).await;
                    ended = Some(owner);
                }
            }
        };
        // Another process may have redriven it in between.
        let Some(turn) = lock().await? else {
            self.leave_letter(noted.key()).await?;
            return Ok(Turn::NotNow);
        };
        let failing = turn.failing();
        let applying = self.inbox.apply_in_turn(&self.consumer, turn, &handler);
        let turn = match within(self.redrive_max(), "redrive", applying).await {
            Ok(resolution) => Turn::Closed(resolution),
            Err(error) => Turn::Failed(Box::new(failing(error))),
        };
        self.put_letter_down(noted.key(), matches!(turn, Turn::Closed(_))).await?;
        Ok(turn)
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

/// The consequence of a failed redrive.
enum Consequence {
    /// The failure says nothing about the message: the next check tries again.
    Later,
    /// It becomes an ordinary dead letter.
    Dead(Reason, String),
    /// It is tried again, within the limits of any message.
    Failed(Failing, Box<dyn Error + Send + Sync>),
}

impl From<RedriveError> for Consequence {
    fn from(error: RedriveError) -> Self {
        match error {
            RedriveError::Handler(error) => error.into(),
            RedriveError::Commit(error) => match of_staged(error) {
                Ok(error) => error.into(),
                Err(error) => {
                    let kind = if error.is_innocent() { FailureKind::Database } else { FailureKind::Own };
                    Self::Failed((kind, None), error.into())
                }
            },
            RedriveError::Refused(refusal) => Self::Dead(Reason::from(&refusal), refusal.to_string()),
            RedriveError::NotAMessage { problem, .. } => Self::Dead(Reason::Poison, problem),
            RedriveError::Admit(error) => Self::Failed((FailureKind::Database, None), error.into()),
            // The handler broke its transaction: its own failure.
            RedriveError::Store(error) if !error.is_transient() => {
                HandlerError::of_broken_transaction(error).into()
            }
            RedriveError::Store(error) => Self::Failed((FailureKind::Database, None), error.into()),
            _ => Self::Later,
        }
    }
}

impl From<HandlerError> for Consequence {
    fn from(error: HandlerError) -> Self {
        match error.next() {
            Next::Reject => Self::Dead(Reason::Rejected, error_text(&error)),
            Next::Retry => Self::Failed((FailureKind::Own, error.delay()), error.into()),
            // The next check tries again, whatever the handler has asked for.
            Next::Unavailable | Next::NotYet => Self::Failed((FailureKind::Unavailable, None), error.into()),
            Next::Database => Self::Failed((FailureKind::Database, None), error.into()),
        }
    }
}

impl<S: Store> Worker<S> {
    /// Returns the open dead letter that holds the key of an admitted message, if the consumer
    /// holds keys.
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

    /// Returns the places of those fresh messages in an admitted batch that must not be handled
    /// with it. A dead letter holds their key, or an earlier message of their key was refused and
    /// will become a dead letter.
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

    /// Redrives held messages that are due, and those behind them, until `ends_at`; the next call
    /// continues from there. Returns whether there may be more.
    ///
    /// A message that fails in any way does not block the others. Only a database that is
    /// unavailable before anything has begun ends the call.
    pub(super) async fn redrive_held(
        &self,
        look: &mut HeldLook,
        ends_at: Instant,
    ) -> Result<bool, StoreError> {
        if look.after.is_none() {
            let began = (Instant::now(), self.store.now());
            if let Some(freed) = self.freed(look).await? {
                let mut turns = Turns::of(freed, false);
                if !self.take_turns(&mut turns, look, ends_at).await? {
                    return Ok(true);
                }
                look.looked = Some(began.1);
                return Ok(turns.is_any_closed);
            }
            look.walked = Some(began.0);
            look.looked = Some(began.1);
            look.seen.clear();
        }
        let mut is_any_closed = false;
        loop {
            let firsts = self.store.held_firsts(look.after.as_ref(), BATCH).await?;
            let end = firsts.last().filter(|_| firsts.len() >= BATCH as usize).map(|first| first.key.clone());
            let in_turn = firsts.into_iter().filter(|first| first.is_in_turn);
            let mut turns = Turns::of(in_turn.map(|first| (first.letter, first.key)), true);
            if !self.take_turns(&mut turns, look, ends_at).await? {
                return Ok(true);
            }
            is_any_closed |= turns.is_any_closed;
            look.after = end;
            if look.after.is_none() {
                let HeldLook { courses, seen, .. } = look;
                courses.retain(|letter, _| seen.contains(letter));
                return Ok(is_any_closed);
            }
            if Instant::now() >= ends_at {
                return Ok(true);
            }
        }
    }

    /// Returns the held messages that may be due since the last check: the first ones of keys that
    /// had a dead letter closed, and those that are being retried. Returns `None` when all keys
    /// must be checked, which reads each of them.
    async fn freed(&self, look: &HeldLook) -> Result<Option<Vec<(DeadLetterId, HeldKey)>>, StoreError> {
        let (Some(walked), Some(looked)) = (look.walked, look.looked) else { return Ok(None) };
        if walked.elapsed() >= WALK_EVERY {
            return Ok(None);
        }
        // A dead letter closed at that moment may have been committed later, and a message may have
        // seen it open and been held since.
        let closed = self.store.keys_closed_since(back(looked, CLOSING_MAX), CLOSED_MAX).await?;
        let Some(keys) = closed.map(Vec::from_iter) else { return Ok(None) };
        let mut freed: Vec<_> =
            look.courses.iter().map(|(letter, (key, _))| (*letter, key.clone())).collect();
        if !keys.is_empty() {
            let firsts = self.store.firsts_of(&keys).await?;
            let is_new = |letter: &DeadLetterId| !look.courses.contains_key(letter);
            let firsts = firsts.into_iter().zip(keys);
            freed.extend(firsts.filter_map(|(first, key)| Some((first.filter(is_new)?, key))));
        }
        Ok(Some(freed))
    }

    /// Redrives held messages, and those behind them. Returns whether it finished before `ends_at`.
    async fn take_turns(
        &self,
        turns: &mut Turns,
        look: &mut HeldLook,
        ends_at: Instant,
    ) -> Result<bool, StoreError> {
        while let Some(InTurn { letter, key, is_of_walk }) = turns.queue.pop_front() {
            if Instant::now() >= ends_at {
                return Ok(false);
            }
            if is_of_walk {
                look.after = Some(key.clone());
            }
            look.seen.insert(letter);
            let span = tracing::info_span!("redrive", consumer = %self.consumer, dead_letter = %letter);
            let turn = self.take_turn(letter, &key, &mut look.courses).instrument(span).await;
            // After an error the next check walks over all keys, so the others get their turn.
            if !turn.inspect_err(|_| look.walked = None)? {
                continue;
            }
            turns.is_any_closed = true;
            turns.left = turns.left.saturating_sub(1);
            if turns.left > 0
                && let Some(next) = self.store.firsts_of(std::slice::from_ref(&key)).await?.pop().flatten()
            {
                turns.queue.push_back(InTurn { letter: next, key, is_of_walk: false });
            }
        }
        Ok(true)
    }

    /// Redrives a held message if it is due. Returns whether it is closed now.
    async fn take_turn(
        &self,
        letter: DeadLetterId,
        key: &HeldKey,
        courses: &mut HashMap<DeadLetterId, (HeldKey, Course)>,
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
            // The error concerns this message only; continue with the others.
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
                let (_, course) = courses.entry(letter).or_insert_with(|| (key.clone(), Course::default()));
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
