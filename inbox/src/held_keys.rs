//! Keys that wait behind a dead letter.
//!
//! When a consumer uses [`AfterDeadLetter::HoldKey`], a fresh message is not handled if its key has
//! an open dead letter. It becomes a dead letter with the reason [`Reason::Held`] and an inbox row,
//! and is settled. Once no earlier dead letter of its key is open, a process of the consumer
//! redrives it automatically, whatever option that process uses.
//!
//! A dead letter holds its key while its message may still take effect: `poison`, `rejected`,
//! `too_old`, `from_the_future` and `held`. The id of a `key_reused` one has taken effect with
//! another payload; the others hold no whole message, or their tenant is unknown. A key here
//! belongs to one consumer, tenant and topic: tenants may use the same keys, and brokers keep no
//! order across topics.
//!
//! Why the order of a key is kept:
//!
//! * **Among held messages.** A key is delivered one message after another, and a message is
//!   settled only after its dead letter is committed. The database assigns `seq` when a dead letter
//!   is stored, so `seq` ascends in the order of arrival. The ids of dead letters do not: they
//!   follow the clocks of several processes.
//! * **No arrival overtakes.** A message is admitted first. Then a separate statement in the same
//!   transaction checks for a dead letter that holds its key. By then every earlier message of the
//!   key has taken effect or is a committed dead letter, even after a rebalance. While the old
//!   owner of the key still stores the dead letter of a message, the new owner's copy of that
//!   message waits for the same inbox row, alone or in a batch, and so does everything behind it.
//!   If the copy was faster and took effect, the dead letter is closed as a duplicate.
//! * **The last dead letter is redriven at that moment.** The arrival sees it open and is held,
//!   although no earlier one is open once that transaction has committed. The arrival is then the
//!   first of its key. The next check redrives it, and every later message sees it.
//! * **An operator asks for a redrive.** The consumer that carries it out checks for an earlier
//!   dead letter of the key in the transaction of the redrive, whatever the reason of the dead
//!   letter is.
//! * **Two processes redrive.** The first dead letter of a key is locked, and a process that does
//!   not get the lock leaves the key alone. Under the lock it checks again whether an earlier one
//!   is open.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::Duration;

use message::{MessageId, shield};
use sqlx::{ColumnIndex, Decode, Row, Type};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::{Attempt, Forget};
use crate::batch::Candidate;
use crate::day::ahead;
use crate::dead_letter::{DeadLetter, DeadLetterId, Reason, Resolution};
use crate::dialect::{Dialect, Key, parts::Guards};
use crate::error::RedriveError;
use crate::guard::key;
use crate::handler::Handler;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::redrive::{Hand, RedriveOptions};
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

/// Maximum pause between two attempts. A held message whose next attempt is further away failed
/// while the database's clock was ahead. Equal in all processes: each meets the pauses of the
/// others.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(86_400);

/// How a consumer treats later messages of a key that has an open dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterDeadLetter {
    /// Later messages of the key take effect before the dead letter is redriven. The default.
    #[default]
    KeyGoesOn,
    /// Later messages of the key (of the same tenant and topic) are kept as dead letters with the
    /// reason [`Reason::Held`], and settled. When the dead letter before them is redriven or
    /// discarded, they are redriven automatically in the order of their arrival. One that fails
    /// then becomes an ordinary dead letter and holds those behind it. Use the same value in all
    /// processes of the consumer. Costs one query for each message or batch with a key.
    HoldKey,
}

/// A key whose messages are held one behind another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeldKey {
    /// The tenant.
    pub tenant: String,
    /// The topic.
    pub topic: String,
    /// The ordering key.
    pub key: String,
}

impl HeldKey {
    /// Reads the key from a row; the tenant is the column `scope`.
    fn of_row<'r, R: Row>(row: &'r R) -> Result<Option<Self>, sqlx::Error>
    where
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
    {
        let key: Option<String> = row.try_get("key")?;
        let (tenant, topic) = (row.try_get("scope")?, row.try_get("topic")?);
        Ok(key.map(|key| Self { tenant, topic, key }))
    }
}

/// The first held message of a key.
#[derive(Debug, Clone)]
pub struct HeldFirst {
    /// The message.
    pub letter: DeadLetterId,
    /// Its key.
    pub key: HeldKey,
    /// Whether no earlier dead letter holds the key.
    pub is_in_turn: bool,
}

impl HeldFirst {
    /// Reads a row of either database. The caller passes the id, because its type differs.
    pub(crate) fn of_row<'r, R: Row>(row: &'r R, letter: DeadLetterId) -> Result<Self, sqlx::Error>
    where
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        bool: Decode<'r, R::Database> + Type<R::Database>,
    {
        let key = HeldKey::of_row(row)?.ok_or(sqlx::Error::RowNotFound)?;
        Ok(Self { letter, key, is_in_turn: row.try_get("is_in_turn")? })
    }
}

/// A closed dead letter.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The consumer whose dead letter it was.
    pub consumer: String,
    /// Its key, if it had one.
    pub key: Option<HeldKey>,
}

impl Closed {
    /// Reads a row of either database.
    pub(crate) fn of_row<'r, R: Row>(row: &'r R) -> Result<Self, sqlx::Error>
    where
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
    {
        Ok(Self { consumer: row.try_get("consumer")?, key: HeldKey::of_row(row)? })
    }
}

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
    /// Whether a failure is noted, counted or not.
    has_failed: bool,
}

impl<DB: Dialect> HeldTurn<DB> {
    /// Returns a function that makes the [`FailedTurn`] of this message from an error.
    pub(crate) fn failing(&self) -> impl FnOnce(RedriveError) -> FailedTurn + use<DB> {
        let (tenant, message_id, failures) = (self.tenant.clone(), self.message_id, self.letter.attempts);
        move |error| FailedTurn { tenant, message_id, failures, error }
    }

    /// Ends the turn and notes that a process has the message in hand, unless another process has
    /// noted that. Takes over the note of the process `ended`.
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
        noted.map_err(|error| StoreError::broken("record what is redriven", error))?;
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
        /// The failure with which to give it up, if too many processes ended with it in hand.
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
    /// Number of failures counted before.
    pub failures: u32,
    /// The failure.
    pub error: RedriveError,
}

/// The statements about held messages.
#[doc(hidden)]
pub trait HeldKeys: Guards {
    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn holders(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>, sqlx::Error>> + Send;

    /// Returns the first open dead letter that holds the key of dead letter `id` and is before it.
    fn holder_before(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<DeadLetterId>, sqlx::Error>> + Send;

    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    fn held_firsts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldFirst>, sqlx::Error>> + Send;

    /// Returns the dead letters that were closed since a moment, the latest first.
    fn closed_since(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        since: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Closed>, sqlx::Error>> + Send;

    /// Reads and locks a held message. Returns `None` when it is no longer held, or another
    /// transaction has the lock.
    fn lock_held(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<DeadLetter>, sqlx::Error>> + Send;

    /// Turns a held message into an ordinary dead letter. Returns the number of rows changed.
    fn fail_held(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
        cause: (Reason, &str, u32),
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
}

/// Returns the error text of a held message.
pub(crate) fn held_behind(holder: DeadLetterId) -> String {
    format!("held behind dead letter {holder}, which has the same key and arrived earlier")
}

impl<DB: Dialect> Inbox<DB> {
    /// Returns the first open dead letter that holds each of these keys, in their order. Runs one
    /// query.
    async fn holders(
        &self,
        connection: &mut DB::Connection,
        consumer: &ConsumerName,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        DB::holders(connection, self.statements(), consumer.as_str(), keys)
            .await
            .map_err(StoreError::during("find what holds a key"))
    }

    /// Returns the first open dead letter that holds the key of each of these messages, in their
    /// order.
    pub(crate) async fn holders_of(
        &self,
        connection: &mut DB::Connection,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        let (mut keys, mut known) = (Vec::new(), HashMap::new());
        let place = |Candidate { tenant, message }: &Candidate<'_>| {
            let key = HeldKey {
                tenant: tenant.as_str().to_owned(),
                topic: message.topic.as_str().to_owned(),
                key: message.key.as_ref()?.as_str().to_owned(),
            };
            Some(*known.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                keys.len() - 1
            }))
        };
        let places: Vec<Option<usize>> = candidates.iter().map(place).collect();
        if keys.is_empty() {
            return Ok(vec![None; candidates.len()]);
        }
        let holders = self.holders(connection, consumer, &keys).await?;
        Ok(places.into_iter().map(|place| holders.get(place?).copied().flatten()).collect())
    }

    /// Refuses to redrive a dead letter while an earlier one of its key is open. This applies to
    /// every held message, and to other dead letters when their consumer holds keys.
    pub(crate) async fn check_turn(
        &self,
        tx: &mut InboxTransaction<DB>,
        letter: &DeadLetter,
        after_dead_letter: AfterDeadLetter,
    ) -> Result<(), RedriveError> {
        if letter.reason != Reason::Held && after_dead_letter == AfterDeadLetter::KeyGoesOn {
            return Ok(());
        }
        match self.holder_before(tx, letter.id).await? {
            Some(behind) => Err(RedriveError::Held { id: letter.id, behind }),
            None => Ok(()),
        }
    }

    async fn holder_before(
        &self,
        tx: &mut InboxTransaction<DB>,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetterId>, StoreError> {
        DB::holder_before(tx, self.statements(), id)
            .await
            .map_err(StoreError::during("find what holds a key"))
    }

    /// Returns the first held message of each of the next keys after `after`. Cancel-safe.
    pub(crate) async fn held_firsts(
        &self,
        consumer: &ConsumerName,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> Result<Vec<HeldFirst>, StoreError> {
        let what = "find the next held messages";
        let mut connection = self.acquire(what).await?;
        DB::held_firsts(&mut connection, self.statements(), consumer.as_str(), after, limit)
            .await
            .map_err(StoreError::during(what))
    }

    /// Returns the distinct keys of this consumer that had a dead letter closed since a moment;
    /// `None` when `limit` or more dead letters were closed. Cancel-safe.
    pub(crate) async fn keys_closed_since(
        &self,
        consumer: &ConsumerName,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Option<HashSet<HeldKey>>, StoreError> {
        let what = "check whether dead letters were closed";
        let mut connection = self.acquire(what).await?;
        let closed = DB::closed_since(&mut connection, self.statements(), since, limit)
            .await
            .map_err(StoreError::during(what))?;
        if closed.len() >= limit as usize {
            return Ok(None);
        }
        let own = closed.into_iter().filter(|closed| closed.consumer == consumer.as_str());
        Ok(Some(own.filter_map(|closed| closed.key).collect()))
    }

    /// Returns the first open dead letter that holds each of these keys, in their order.
    /// Cancel-safe.
    pub(crate) async fn holders_of_keys(
        &self,
        consumer: &ConsumerName,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        let mut connection = self.acquire("find what holds a key").await?;
        self.holders(&mut connection, consumer, keys).await
    }

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
        let locked =
            DB::lock_held(&mut tx, self.statements(), id).await.map_err(failed("read a held message"))?;
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
        let attempt = DB::attempt(&mut tx, self.statements(), letter.key())
            .await
            .map_err(failed("read the attempts"))?;
        if attempt.is_some() {
            // The clock may have changed since the last reading, for example with a failover.
            self.refresh_on(&mut tx).await?;
        }
        let now = self.window().now;
        let waits = |attempt: &Attempt| attempt.next_at > now && attempt.next_at <= ahead(now, PAUSE_MAX);
        if attempt.as_ref().is_some_and(waits) {
            return Ok(None);
        }
        let (Some(message_id), Ok(tenant)) = (letter.message_id, Tenant::new(letter.scope.as_str())) else {
            tracing::error!(dead_letter = %id, "a held message no longer has an id or tenant; discard it");
            return Ok(None);
        };
        let failures = attempt.map(|attempt| attempt.attempts);
        let letter = DeadLetter { attempts: failures.unwrap_or(0), ..letter };
        Ok(Some(HeldTurn { tx, letter, tenant, message_id, has_failed: failures.is_some() }))
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

    /// Turns a held message into an ordinary dead letter, which holds those behind it, and forgets
    /// its attempts. Returns whether it was still held: an operator may have decided about it
    /// meanwhile. Runs to its end even if this call is dropped.
    pub(crate) async fn fail_held(
        &self,
        consumer: &ConsumerName,
        id: DeadLetterId,
        (tenant, message_id): (&Tenant, MessageId),
        (reason, error, attempts): (Reason, String, u32),
    ) -> Result<bool, StoreError> {
        let (inbox, consumer, tenant) = (self.clone(), consumer.clone(), tenant.clone());
        shield(async move {
            let failed = StoreError::during;
            let mut tx = inbox.begin_raw("begin to store a dead letter").await?;
            let rows = DB::fail_held(&mut tx, inbox.statements(), id, (reason, &error, attempts))
                .await
                .map_err(failed("dead-letter a held message"))?;
            inbox.forget_failures(&mut tx, key(&consumer, &tenant, message_id)).await?;
            tx.commit().await.map_err(failed("commit a dead letter"))?;
            Ok(rows > 0)
        })
        .await
    }

    async fn forget_failures(&self, connection: &mut DB::Connection, key: Key<'_>) -> Result<(), StoreError> {
        DB::forget_attempts(connection, self.statements(), &[key], Forget::All)
            .await
            .map_err(StoreError::during("delete the attempts of a held message"))
    }
}
