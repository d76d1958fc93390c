//! Many deliveries in one transaction.
//!
//! They are admitted in one round trip and handled in their order. When one fails, everything is rolled back; what
//! came before the culprit is done again without it, the culprit and what is behind it on its key go the way of single
//! deliveries, and the rest goes on as a batch. A failure that names no culprit (at the commit) halves the batch.

use std::collections::{HashSet, VecDeque};
use std::error::Error;

use message::{Committed, Message, OrderingKey};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::crash::CrashPoint;
use super::lanes::Held;
use super::store::{Admitted, Store};
use super::worker::{Worker, closed, is_innocent};
use crate::attempts::error_text;
use crate::batch::Candidate;

/// What a batch came to.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Committed.
    pub(super) settled: Vec<(Held, Committed)>,
    /// To be worked on one by one, in this order.
    pub(super) singles: Vec<Held>,
    /// Not worked on, because it is to give up.
    pub(super) released: Vec<Held>,
}

/// A delivery and its place in the batch.
type Placed = (usize, Held);

/// Takes out chunks, which go the way of single deliveries, and what is behind them on their keys.
fn set_chunks_apart(batch: Vec<Held>) -> (Vec<Placed>, Vec<Placed>) {
    let mut keys: HashSet<OrderingKey> = HashSet::new();
    batch.into_iter().enumerate().partition(|(_, held)| {
        let is_chunk = held.delivery.message.as_ref().is_ok_and(|message| message.chunk.is_some());
        if is_chunk {
            keys.extend(held.key().cloned());
        }
        !is_chunk && held.key().is_none_or(|key| !keys.contains(key))
    })
}

/// Takes out what is behind the culprit on its key: `parts` are all later than it.
fn take_behind((_, culprit): &Placed, parts: &mut VecDeque<Vec<Placed>>, singles: &mut Vec<Placed>) {
    let Some(key) = culprit.key() else { return };
    for part in parts {
        let (behind, rest): (Vec<_>, Vec<_>) =
            std::mem::take(part).into_iter().partition(|(_, held)| held.key() == Some(key));
        singles.extend(behind);
        *part = rest;
    }
}

enum Attempt {
    /// A proof per delivery; none for those that were refused.
    Done(Vec<Option<Committed>>),
    /// The handler failed on this one.
    Culprit(usize),
    /// Rolled back at the commit.
    RolledBack,
    /// Something is away; not counted.
    Outage(Box<dyn Error + Send + Sync>),
}

impl<S: Store> Worker<S> {
    /// Works on a batch of readable deliveries.
    pub(super) async fn run_many(&self, batch: Vec<Held>, give_up: &CancellationToken) -> Sorted {
        let mut sorted = Sorted::default();
        let (batch, mut singles) = set_chunks_apart(batch);
        let mut parts: VecDeque<Vec<Placed>> = VecDeque::from([batch]);
        let mut outages = 0;
        while let Some(mut part) = parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            match self.attempt_many(&part).await {
                Attempt::Done(proofs) => {
                    for (placed, proof) in part.into_iter().zip(proofs) {
                        match proof {
                            Some(proof) => sorted.settled.push((placed.1, proof)),
                            None => singles.push(placed),
                        }
                    }
                }
                Attempt::RolledBack if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.push_front(rest);
                    parts.push_front(part);
                }
                attempt @ (Attempt::Culprit(_) | Attempt::RolledBack) => {
                    let at = if let Attempt::Culprit(at) = attempt { at } else { 0 };
                    parts.push_front(part.split_off(at + 1));
                    if let Some(culprit) = part.pop() {
                        take_behind(&culprit, &mut parts, &mut singles);
                        singles.push(culprit);
                    }
                    parts.push_front(part);
                }
                Attempt::Outage(error) => {
                    parts.push_front(part);
                    if self.wait_out(&mut outages, &*error, give_up).await.is_err() {
                        sorted.released.extend(parts.drain(..).flatten().map(|(_, held)| held));
                    }
                }
            }
        }
        // A second culprit can stand before the first.
        singles.sort_unstable_by_key(|(at, _)| *at);
        sorted.singles = singles.into_iter().map(|(_, held)| held).collect();
        sorted
    }

    async fn attempt_many(&self, part: &[Placed]) -> Attempt {
        let _permit = match self.permits.acquire().await.map_err(closed) {
            Ok(permit) => permit,
            Err(error) => return Attempt::Outage(error.into()),
        };
        let begun_at = Instant::now();
        let mut tx = match self.store.begin().await {
            Ok(tx) => tx,
            Err(error) => return Attempt::Outage(error.into()),
        };
        let messages: Vec<&Message> =
            part.iter().filter_map(|(_, held)| held.delivery.message.as_ref().ok()).collect();
        let candidates: Vec<_> =
            messages.iter().map(|message| Candidate { scope: (self.scope_of)(message), message }).collect();
        // Nothing for what is refused; the way of single deliveries dead-letters it.
        let admissions: Vec<Option<Admitted<S::Guard>>> =
            match self.store.admit_batch(&mut tx, &candidates).await {
                Ok(admissions) => admissions.into_iter().map(Result::ok).collect(),
                Err(error) => return Attempt::Outage(error.into()),
            };
        let admitted: Vec<_> = admissions.iter().map(Option::is_some).collect();
        let (mut applied, mut duplicates) = (Vec::new(), 0);
        for (at, (admission, candidate)) in admissions.into_iter().zip(&candidates).enumerate() {
            match admission {
                Some(Ok(guard)) => {
                    let redelivered = part[at].1.delivery.redelivered;
                    match self.apply(&mut tx, guard, candidate, redelivered).await {
                        Ok(()) => applied.push(candidate.message.id),
                        Err(Some(unavailable)) => return Attempt::Outage(unavailable),
                        Err(None) => return Attempt::Culprit(at),
                    }
                }
                Some(Err(_)) => duplicates += 1,
                None => {}
            }
        }
        applied.iter().for_each(|id| self.crash(CrashPoint::AfterEffect, *id));
        match self.store.commit(tx).await {
            Ok(proofs) => {
                self.meter.applied(applied.len(), begun_at.elapsed());
                self.meter.duplicates(duplicates);
                let ids: Vec<_> = applied.iter().map(ToString::to_string).collect();
                tracing::info!(consumer = %self.consumer, duplicates, message_ids = ids.join(" "), "batch applied");
                applied.iter().for_each(|id| self.crash(CrashPoint::AfterCommit, *id));
                let mut proofs = proofs.into_iter();
                Attempt::Done(admitted.into_iter().map(|yes| yes.then(|| proofs.next()).flatten()).collect())
            }
            Err(error) if is_innocent(&error) => Attempt::Outage(error.into()),
            Err(error) => {
                tracing::warn!(consumer = %self.consumer, error = error_text(&error), "batch rolled back; splitting");
                Attempt::RolledBack
            }
        }
    }

    /// An error without a cause is the message's own.
    async fn apply(
        &self,
        tx: &mut S::Tx,
        guard: S::Guard,
        candidate: &Candidate<'_>,
        redelivered: bool,
    ) -> Result<(), Option<Box<dyn Error + Send + Sync>>> {
        let Candidate { scope, message } = candidate;
        let result = match self.handle(tx, message).await {
            Ok(result) => result,
            // Also when something is away: it may be so for this message only, and the others go on.
            Err(error) => {
                let error = error_text(&error);
                tracing::warn!(consumer = %self.consumer, message_id = %message.id, error, "failed in a batch");
                return Err(None);
            }
        };
        let stored = async {
            if redelivered {
                self.store.forget_attempts(tx, scope, message.id).await?;
            }
            match result {
                Some(result) => self.store.complete(tx, guard, &result).await,
                None => Ok(()),
            }
        };
        match stored.await {
            Ok(()) => Ok(()),
            Err(error) if error.is_transient() => Err(Some(error.into())),
            Err(_) => Err(None),
        }
    }
}
