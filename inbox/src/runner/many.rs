//! Many deliveries in one transaction.
//!
//! They are admitted in one round trip and handled in their order. When one fails, everything is
//! rolled back. The deliveries before it are done again without it; the failed one and those behind
//! it on its key are handled one by one; and the rest goes on as a batch. A failure of unknown
//! cause (at the commit, or one that may affect every message and repeats) halves the batch.
//! Messages whose key is held by a dead letter are taken out in the same way.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::error::Error;

use message::{Message, MessageId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::crash::CrashPoint;
use super::key_queues::{Held, Lane};
use super::single::{Done, forget_of, waits_for_its_time};
use super::store::{Admitted, Store};
use super::worker::{Worker, closed};
use crate::attempts::{Forget, error_text};
use crate::batch::Candidate;
use crate::name::Tenant;
use crate::received::Received;
use crate::refusal::Refusal;

/// The deliveries of a batch, sorted by outcome.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Committed.
    pub(super) settled: Vec<(Held, Done)>,
    /// To be handled one by one, in this order.
    pub(super) singles: Vec<Held>,
    /// Not handled, because the worker was told to give up.
    pub(super) released: Vec<Held>,
}

/// A delivery, its place in the batch and its tenant.
#[derive(Debug)]
struct Placed {
    at: usize,
    held: Held,
    tenant: Tenant,
}

impl Placed {
    fn name(&self) -> Option<(&Tenant, MessageId)> {
        Some((&self.tenant, self.held.delivery.id()?))
    }
}

/// A delivery that is handled alone, and its place.
type Single = (usize, Held);

/// Number of consecutive outages after which a batch is still tried whole. Then it is halved, until
/// the message that cannot succeed is alone.
const OUTAGES_WHOLE: u32 = 2;

/// Moves what follows the culprit on its key to `singles`: all `parts` are later than the culprit.
fn take_behind(culprit: &Held, parts: &mut VecDeque<Vec<Placed>>, singles: &mut Vec<Single>) {
    let Some(lane) = &culprit.lane else { return };
    for part in parts {
        let (behind, rest): (Vec<_>, Vec<_>) =
            std::mem::take(part).into_iter().partition(|placed| placed.held.lane.as_ref() == Some(lane));
        singles.extend(behind.into_iter().map(|placed| (placed.at, placed.held)));
        *part = rest;
    }
}

/// Adds to these places of a part those that follow one of them on its lane.
fn with_those_behind(part: &[Placed], mut places: HashSet<usize>) -> HashSet<usize> {
    let mut lanes: HashSet<&Lane> = HashSet::new();
    for (at, placed) in part.iter().enumerate() {
        let Some(lane) = &placed.held.lane else { continue };
        if places.contains(&at) {
            lanes.insert(lane);
        } else if lanes.contains(lane) {
            places.insert(at);
        }
    }
    places
}

/// A message whose effect will be applied, and its place in the part.
struct Fresh<'a, G> {
    at: usize,
    guard: G,
    candidate: &'a Candidate<'a>,
    /// Number of failures counted before.
    failures: u32,
}

enum Attempt {
    /// Committed: the end of each delivery, `None` for those that were refused.
    Done(Vec<Option<Done>>),
    /// The handler failed on this one.
    Culprit(usize),
    /// These are handled alone. They wait for their time, behind such a message of their key, or
    /// behind a dead letter of their key or a message that becomes one; or another process has or
    /// had them in hand.
    Apart(HashSet<usize>),
    /// Rolled back at the commit.
    RolledBack,
    /// The database failed.
    Outage(Box<dyn Error + Send + Sync>),
    /// The database could not even begin, so this batch did not cause it.
    Away(Box<dyn Error + Send + Sync>),
}

impl<S: Store> Worker<S> {
    /// Handles a batch of readable deliveries.
    pub(super) async fn run_many(&self, batch: Vec<Held>, give_up: &CancellationToken) -> Sorted {
        let mut sorted = Sorted::default();
        let (batch, mut singles) = self.set_apart(batch);
        let mut parts: VecDeque<Vec<Placed>> = VecDeque::from([batch]);
        let mut outages = 0;
        while let Some(mut part) = parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            let messages = part.iter().filter_map(|placed| placed.held.delivery.message.as_ref().ok());
            let span = self.batch_span(&messages.collect::<Vec<_>>());
            let mut attempt = self.attempt_many(&part).instrument(span).await;
            if let Attempt::Outage(error) | Attempt::Away(error) = &attempt {
                self.put_down(part.iter().map(|placed| &placed.held)).await;
                if self.wait_out(&mut outages, &**error, give_up).await.is_err() {
                    parts.push_front(part);
                    sorted.released.extend(parts.drain(..).flatten().map(|placed| placed.held));
                    break;
                }
                if matches!(attempt, Attempt::Away(_)) || outages <= OUTAGES_WHOLE {
                    parts.push_front(part);
                    continue;
                }
                attempt = Attempt::RolledBack;
            } else {
                outages = 0;
            }
            match attempt {
                Attempt::Done(ends) => {
                    for (Placed { at, held, .. }, done) in part.into_iter().zip(ends) {
                        match done {
                            Some(done) => sorted.settled.push((held, done)),
                            None => {
                                // It will become a dead letter that holds its key, but is not
                                // stored yet.
                                if self.holds_keys {
                                    take_behind(&held, &mut parts, &mut singles);
                                }
                                singles.push((at, held));
                            }
                        }
                    }
                }
                Attempt::Apart(places) => {
                    let mut rest = Vec::with_capacity(part.len() - places.len());
                    for (place, Placed { at, held, tenant }) in part.into_iter().enumerate() {
                        if places.contains(&place) {
                            take_behind(&held, &mut parts, &mut singles);
                            singles.push((at, held));
                        } else {
                            rest.push(Placed { at, held, tenant });
                        }
                    }
                    parts.push_front(rest);
                }
                Attempt::Culprit(at) => self.set_culprit_apart(at, part, &mut parts, &mut singles),
                _ if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.push_front(rest);
                    parts.push_front(part);
                }
                _ => self.set_culprit_apart(0, part, &mut parts, &mut singles),
            }
        }
        let unhandled = sorted.released.iter().chain(singles.iter().map(|(_, held)| held));
        self.put_down(unhandled).await;
        // A later culprit can have an earlier place.
        singles.sort_unstable_by_key(|(at, _)| *at);
        sorted.singles = singles.into_iter().map(|(_, held)| held).collect();
        sorted
    }

    /// Splits off deliveries that are handled one by one: chunks, messages without a known tenant,
    /// and whatever follows one of these on its key.
    fn set_apart(&self, batch: Vec<Held>) -> (Vec<Placed>, Vec<Single>) {
        let mut lanes: HashSet<Lane> = HashSet::new();
        let (mut placed, mut singles) = (Vec::with_capacity(batch.len()), Vec::new());
        for (at, held) in batch.into_iter().enumerate() {
            let is_behind = held.lane.as_ref().is_some_and(|lane| lanes.contains(lane));
            let whole = held.delivery.message.as_ref().ok().filter(|message| message.chunk.is_none());
            match whole.and_then(|message| self.tenant(message).ok()) {
                Some(tenant) if !is_behind => placed.push(Placed { at, held, tenant }),
                _ => {
                    lanes.extend(held.lane.clone());
                    singles.push((at, held));
                }
            }
        }
        (placed, singles)
    }

    /// Takes out one delivery and what follows it on its key; the others go on.
    fn set_culprit_apart(
        &self,
        at: usize,
        mut part: Vec<Placed>,
        parts: &mut VecDeque<Vec<Placed>>,
        singles: &mut Vec<Single>,
    ) {
        parts.push_front(part.split_off(at + 1));
        if let Some(Placed { at, held, .. }) = part.pop() {
            take_behind(&held, parts, singles);
            singles.push((at, held));
        }
        parts.push_front(part);
    }

    async fn attempt_many(&self, part: &[Placed]) -> Attempt {
        let _permit = match self.permits.acquire().await.map_err(closed) {
            Ok(permit) => permit,
            Err(error) => return Attempt::Away(error.into()),
        };
        let begun_at = Instant::now();
        let suspects: Vec<_> = part.iter().enumerate().filter(|(_, placed)| placed.held.is_suspect).collect();
        let noted: Vec<_> = suspects.iter().filter_map(|(_, placed)| placed.name()).collect();
        let mut failures = vec![0; part.len()];
        if !noted.is_empty() {
            let taken = match self.store.take_in_hand(&noted).await {
                Ok(taken) => taken,
                Err(error) => return Attempt::Away(error.into()),
            };
            let mut apart = HashSet::new();
            for ((at, _), taken) in suspects.iter().zip(taken) {
                failures[*at] = taken.failures;
                if taken.ends > 0 || taken.owner.is_some() {
                    apart.insert(*at);
                }
            }
            if !apart.is_empty() {
                return match self.store.put_down(&noted).await {
                    Ok(()) => Attempt::Apart(with_those_behind(part, apart)),
                    Err(error) => Attempt::Away(error.into()),
                };
            }
        }
        let mut tx = match self.store.begin().await {
            Ok(tx) => tx,
            Err(error) => return Attempt::Away(error.into()),
        };
        let readable = part.iter().filter_map(|Placed { held, tenant, .. }| {
            Some(Candidate { tenant: tenant.clone(), message: held.delivery.message.as_ref().ok()? })
        });
        let candidates: Vec<_> = readable.collect();
        let admissions = match self.store.admit_batch(&mut tx, &candidates).await {
            Ok(admissions) => admissions,
            Err(error) => return Attempt::Outage(error.into()),
        };
        let is_early = |admission: &Result<_, Refusal>| admission.as_ref().is_err_and(waits_for_its_time);
        let early = admissions.iter().enumerate().filter(|(_, admission)| is_early(admission));
        let early: HashSet<usize> = early.map(|(at, _)| at).collect();
        if !early.is_empty() {
            return match self.store.rollback(tx).await {
                Ok(()) => Attempt::Apart(with_those_behind(part, early)),
                Err(error) => Attempt::Outage(error.into()),
            };
        }
        // `None` for a refused message, which is then handled alone and dead-lettered.
        let admissions: Vec<Option<Admitted<S::Guard>>> = admissions.into_iter().map(Result::ok).collect();
        match self.held_places(&mut tx, &candidates, &admissions).await {
            Ok(places) if places.is_empty() => {}
            Ok(places) => {
                return match self.store.rollback(tx).await {
                    Ok(()) => Attempt::Apart(places),
                    Err(error) => Attempt::Outage(error.into()),
                };
            }
            Err(error) => return Attempt::Outage(error.into()),
        }
        let mut forgotten: BTreeMap<Forget, Vec<(&Tenant, MessageId)>> = BTreeMap::new();
        for (at, placed) in &suspects {
            let forget = match admissions.get(*at) {
                Some(Some(Ok(_))) => Forget::All,
                Some(Some(Err(copy))) => forget_of(copy),
                // A refused message is in hand until it has been handled alone.
                Some(None) | None => continue,
            };
            forgotten.entry(forget).or_default().extend(placed.name());
        }
        let handled: Vec<Option<bool>> =
            admissions.iter().map(|admission| admission.as_ref().map(Result::is_ok)).collect();
        let (mut applied, mut duplicates) = (Vec::new(), 0);
        let mut run: Vec<Fresh<'_, S::Guard>> = Vec::new();
        for (at, (admission, candidate)) in admissions.into_iter().zip(&candidates).enumerate() {
            match admission {
                Some(Ok(guard)) => {
                    applied.push(candidate.message.id);
                    let fresh = Fresh { at, guard, candidate, failures: failures[at] };
                    let goes_along = run.last().is_some_and(|last| {
                        last.candidate.message.kind == candidate.message.kind
                            && self.store.takes_many(candidate.message)
                    });
                    if !goes_along && let Err(attempt) = self.apply_run(&mut tx, &mut run).await {
                        return attempt;
                    }
                    run.push(fresh);
                }
                Some(Err(_)) => duplicates += 1,
                None => {}
            }
        }
        if let Err(attempt) = self.apply_run(&mut tx, &mut run).await {
            return attempt;
        }
        for (forget, messages) in forgotten {
            if let Err(error) = self.store.forget_attempts(&mut tx, &messages, forget).await {
                return if error.is_transient() {
                    Attempt::Outage(error.into())
                } else {
                    Attempt::RolledBack
                };
            }
        }
        applied.iter().for_each(|id| self.crash(CrashPoint::AfterEffect, *id));
        match self.store.commit(tx).await {
            Ok(proofs) => {
                self.succeeded(applied.len(), begun_at.elapsed());
                self.meter.duplicates(duplicates);
                let ids: Vec<_> = applied.iter().map(ToString::to_string).collect();
                tracing::debug!(consumer = %self.consumer, duplicates, message_ids = ids.join(" "), "batch applied");
                applied.iter().for_each(|id| self.crash(CrashPoint::AfterCommit, *id));
                let mut proofs = proofs.into_iter();
                let done =
                    |is_handled: Option<bool>| Some(Done { is_handled: is_handled?, proof: proofs.next()? });
                Attempt::Done(handled.into_iter().map(done).collect())
            }
            Err(error) if error.is_innocent() => Attempt::Outage(error.into()),
            Err(error) => {
                tracing::warn!(consumer = %self.consumer, error = error_text(&error), "batch rolled back; splitting");
                Attempt::RolledBack
            }
        }
    }

    /// Notes that deliveries that wait, go on alone, or go back to the broker are no longer in hand.
    async fn put_down<'a>(&self, unhandled: impl Iterator<Item = &'a Held>) {
        let named = unhandled.filter(|held| held.is_suspect).filter_map(|held| {
            let message = held.delivery.message.as_ref().ok()?;
            Some((self.tenant(message).ok()?, message.id))
        });
        let named: Vec<(Tenant, MessageId)> = named.collect();
        let names: Vec<_> = named.iter().map(|(tenant, id)| (tenant, *id)).collect();
        if !names.is_empty() {
            self.put_down_unhandled(&names).await;
        }
    }

    /// Applies fresh messages that belong together: a single one, or consecutive ones of one kind
    /// when the handler takes many.
    async fn apply_run(&self, tx: &mut S::Tx, run: &mut Vec<Fresh<'_, S::Guard>>) -> Result<(), Attempt> {
        let mut run = std::mem::take(run);
        let Some(last) = run.pop() else { return Ok(()) };
        if run.is_empty() {
            let at = last.at;
            return self.apply(tx, last).await.map_err(|error| match error {
                Some(unavailable) => Attempt::Outage(unavailable),
                None => Attempt::Culprit(at),
            });
        }
        run.push(last);
        let messages: Vec<&Message> = run.iter().map(|fresh| fresh.candidate.message).collect();
        let facts = |fresh: &Fresh<'_, S::Guard>| {
            let Candidate { tenant, message } = fresh.candidate;
            Received::after(fresh.failures, self.consumer.clone(), tenant.clone(), message)
        };
        let received: Vec<Received> = run.iter().map(facts).collect();
        if let Err(error) = self.handle_many(tx, &run[0].guard, &messages, &received).await {
            let (error, messages) = (error_text(&error), messages.len());
            tracing::warn!(consumer = %self.consumer, messages, error, "failed as a batch; splitting");
            // It is unknown which message failed.
            return Err(Attempt::RolledBack);
        }
        Ok(())
    }

    /// Applies one message. An error without a cause is the message's own.
    async fn apply(
        &self,
        tx: &mut S::Tx,
        Fresh { guard, candidate, failures, .. }: Fresh<'_, S::Guard>,
    ) -> Result<(), Option<Box<dyn Error + Send + Sync>>> {
        let Candidate { tenant, message } = candidate;
        let result = match self.handle(tx, &guard, message, (tenant, failures)).await {
            Ok(result) => result,
            // Also when a dependency is unavailable: that may concern only this message, and the
            // others go on.
            Err(error) => {
                let error = error_text(&error);
                tracing::warn!(consumer = %self.consumer, message_id = %message.id, error, "failed in a batch");
                return Err(None);
            }
        };
        let Some(result) = result else { return Ok(()) };
        match self.store.complete(tx, guard, &result).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_transient() => Err(Some(error.into())),
            Err(_) => Err(None),
        }
    }
}
