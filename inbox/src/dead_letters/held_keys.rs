//! Keys that wait behind a dead letter.
//!
//! When a consumer uses [`AfterDeadLetter::HoldKey`], a fresh message is not handled if its key has
//! an open dead letter. It becomes a dead letter with the reason [`Reason::Held`] and an inbox row,
//! and is settled. Once no earlier dead letter of its key is open, a process of the consumer
//! redrives it automatically, whatever option that process uses.
//!
//! A dead letter holds its key while its message may still take effect: `poison`, `rejected`,
//! `too_old`, `from_the_future` and `held`. The id of a `key_reused` one has taken effect with a
//! different payload; the others hold no whole message, or their tenant is unknown. A key here
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

use time::OffsetDateTime;

use super::options::AfterDeadLetter;
use super::reason::Reason;
use super::record::{DeadLetter, HeldFirst, HeldKey};
use crate::batch::Candidate;
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

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
        DB::holders(connection, self.tables(), consumer.as_str(), keys)
            .await
            .map_err(StoreError::during("find the dead letter that holds a key"))
    }

    /// Returns the first open dead letter that holds the key of each of these messages, in their
    /// order.
    pub(crate) async fn holders_of(
        &self,
        connection: &mut DB::Connection,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        let mut keys = Vec::new();
        let mut known = HashMap::new();
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

    /// Returns the first open dead letter that holds the key of a dead letter and is before it.
    pub(crate) async fn holder_before(
        &self,
        tx: &mut InboxTransaction<DB>,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetterId>, StoreError> {
        self.tables()
            .holder_before(tx, id)
            .await
            .map_err(StoreError::during("find the dead letter that holds a key"))
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
        self.tables()
            .held_firsts(&mut connection, consumer.as_str(), after, limit)
            .await
            .map_err(StoreError::during(what))
    }

    /// Returns the distinct keys of this consumer with a dead letter that was closed since a given
    /// time; `None` when `limit` or more dead letters with keys were closed. Cancel-safe.
    pub(crate) async fn keys_closed_since(
        &self,
        consumer: &ConsumerName,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Option<HashSet<HeldKey>>, StoreError> {
        let what = "check whether dead letters were closed";
        let mut connection = self.acquire(what).await?;
        let closed = self
            .tables()
            .closed_since(&mut connection, consumer.as_str(), since, limit)
            .await
            .map_err(StoreError::during(what))?;
        let is_cut = closed.len() >= limit as usize;
        Ok((!is_cut).then(|| closed.into_iter().collect()))
    }

    /// Returns the first open dead letter that holds each of these keys, in their order.
    /// Cancel-safe.
    pub(crate) async fn holders_of_keys(
        &self,
        consumer: &ConsumerName,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        let mut connection = self.acquire("find the dead letter that holds a key").await?;
        self.holders(&mut connection, consumer, keys).await
    }
}
