//! Handles the deliveries of a batch in one transaction.

use std::collections::{BTreeMap, HashSet};

use message::{Message, MessageId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::{forget_of, waits_for_its_time};
use super::crash::CrashPoint;
use super::key_queues::{Held, Lane};
use super::step::{BoxedError, Done};
use super::store::{Admitted, AdmittedBatch, Store};
use super::waits::{WaitReason, Waited};
use super::worker::{GivenUp, Worker};
use crate::attempts::Forget;
use crate::batch::Candidate;
use crate::error_text::error_text;
use crate::handler::Received;
use crate::ids::{MessageName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// A delivery, its position in the batch and its tenant.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) at: usize,
    pub(super) held: Held,
    pub(super) tenant: Tenant,
}

impl Placed {
    fn name(&self) -> Option<MessageName<'_>> {
        Some(MessageName { tenant: &self.tenant, id: self.held.delivery.id()? })
    }
}

/// The outcome of a batch, or of a part of it.
pub(super) enum Attempt {
    /// Committed: the end of each delivery, `None` for those that were refused.
    Done(Vec<Option<Done>>),
    /// The handler failed on this one.
    Culprit(usize),
    /// Rolled back or not begun: these are handled alone. They wait for their time, for an earlier
    /// message of their key, or behind a dead letter of their key; or another process has or had
    /// them in hand.
    Apart(HashSet<usize>),
    /// Rolled back at the commit.
    RolledBack,
    /// The database failed.
    Outage(BoxedError),
    /// No transaction could begin, so the batch did not cause it: the database is unavailable.
    Away(BoxedError),
    /// Not begun, because the session is over or the consumer is stopping.
    GivenUp,
}

impl Attempt {
    fn outage(error: impl Into<BoxedError>) -> Self {
        Self::Outage(error.into())
    }

    fn away(error: impl Into<BoxedError>) -> Self {
        Self::Away(error.into())
    }
}

/// A message whose effect will be applied, and its position in the part.
struct Fresh<'a, G> {
    at: usize,
    guard: G,
    candidate: &'a Candidate<'a>,
    /// Number of failures counted before.
    failures: u32,
}

/// The messages of a batch that took effect or were suppressed.
#[derive(Default)]
struct Handled {
    applied: Vec<MessageId>,
    duplicates: usize,
}

/// Returns the messages of a part as those that wait.
pub(super) fn waited(part: &[Placed]) -> Waited {
    Waited { first: part.first().and_then(|placed| placed.held.delivery.id()), count: part.len() }
}

/// Adds to these positions of a part the positions that follow one of them on its lane.
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

/// Returns the messages whose in-hand notes end with the batch.
fn forgotten<'a, G>(
    part: &'a [Placed],
    admissions: &AdmittedBatch<G>,
) -> BTreeMap<Forget, Vec<MessageName<'a>>> {
    let mut forgotten: BTreeMap<Forget, Vec<MessageName<'_>>> = BTreeMap::new();
    for (placed, admission) in part.iter().zip(admissions).filter(|(placed, _)| placed.held.is_suspect) {
        let forget = match admission {
            Ok(Ok(_)) => Forget::All,
            Ok(Err(copy)) => forget_of(copy),
            // A refused message is in hand until it has been handled alone.
            Err(_) => continue,
        };
        forgotten.entry(forget).or_default().extend(placed.name());
    }
    forgotten
}

impl<S: Store> Worker<S> {
    /// Handles a part of a batch, in one transaction.
    pub(super) async fn attempt_batch(&self, part: &[Placed], give_up: &CancellationToken) -> Attempt {
        self.try_batch(part, give_up).await.unwrap_or_else(|attempt| attempt)
    }

    async fn try_batch(&self, part: &[Placed], give_up: &CancellationToken) -> Result<Attempt, Attempt> {
        let _permit = self.permits(1, give_up).await.map_err(|GivenUp| Attempt::GivenUp)?;
        let ids = part.iter().filter_map(|placed| placed.held.delivery.id()).collect();
        let _waiting = self.waits(WaitReason::Database, waited(part)).with(ids);
        let begun_at = Instant::now();
        let taking = self.take_suspects_in_hand(part);
        let failures = self.noted(taking, give_up).await.map_err(|GivenUp| Attempt::GivenUp)??;
        let begun = self.begin(give_up).await.map_err(|GivenUp| Attempt::GivenUp)?;
        let mut tx = begun.map_err(Attempt::away)?;
        let readable = part.iter().filter_map(|Placed { held, tenant, .. }| {
            Some(Candidate { tenant: tenant.clone(), message: held.delivery.message.as_ref().ok()? })
        });
        let candidates: Vec<_> = readable.collect();
        let admissions = self.store.admit_batch(&mut tx, &candidates).await.map_err(Attempt::outage)?;
        let apart = self.places_apart(&mut tx, part, &candidates, &admissions).await;
        let apart = apart.map_err(Attempt::outage)?;
        if !apart.is_empty() {
            self.store.rollback(tx).await.map_err(Attempt::outage)?;
            return Ok(Attempt::Apart(apart));
        }
        let forgotten = forgotten(part, &admissions);
        // A refused message is handled alone afterwards, and dead-lettered.
        let are_handled: Vec<Option<bool>> =
            admissions.iter().map(|admission| admission.as_ref().ok().map(Result::is_ok)).collect();
        let handled = self.apply_all(&mut tx, &candidates, admissions, &failures).await?;
        for (forget, messages) in forgotten {
            self.store.forget_attempts(&mut tx, &messages, forget).await.map_err(|error| {
                if error.is_transient() { Attempt::outage(error) } else { Attempt::RolledBack }
            })?;
        }
        handled.applied.iter().for_each(|id| self.crash(CrashPoint::AfterEffect, *id));
        let proofs = self.store.commit(tx).await.map_err(|error| {
            if error.is_innocent() {
                return Attempt::outage(error);
            }
            tracing::warn!(consumer = %self.consumer, error = error_text(&error), "batch rolled back; splitting");
            Attempt::RolledBack
        })?;
        self.batch_applied(&handled, begun_at);
        let mut proofs = proofs.into_iter();
        let done = |is_handled: Option<bool>| Some(Done { is_handled: is_handled?, proof: proofs.next()? });
        Ok(Attempt::Done(are_handled.into_iter().map(done).collect()))
    }

    /// Records the deliveries that other processes may have had in hand. Returns the counted
    /// failures of each delivery, or the attempt that ends here.
    async fn take_suspects_in_hand(&self, part: &[Placed]) -> Result<Vec<u32>, Attempt> {
        let mut failures = vec![0; part.len()];
        let suspects: Vec<_> = part.iter().enumerate().filter(|(_, placed)| placed.held.is_suspect).collect();
        let noted: Vec<_> = suspects.iter().filter_map(|(_, placed)| placed.name()).collect();
        if noted.is_empty() {
            return Ok(failures);
        }
        let taken = self.store.take_in_hand(&noted).await.map_err(Attempt::away)?;
        let mut apart = HashSet::new();
        for ((at, _), taken) in suspects.iter().zip(taken) {
            failures[*at] = taken.failures;
            if taken.ends > 0 || taken.owner.is_some() {
                apart.insert(*at);
            }
        }
        if apart.is_empty() {
            return Ok(failures);
        }
        self.store.put_down(&noted).await.map_err(Attempt::away)?;
        Err(Attempt::Apart(with_those_behind(part, apart)))
    }

    /// Returns the positions of admitted messages that must not be handled with the batch.
    async fn places_apart(
        &self,
        tx: &mut S::Tx,
        part: &[Placed],
        candidates: &[Candidate<'_>],
        admissions: &AdmittedBatch<S::Guard>,
    ) -> Result<HashSet<usize>, StoreError> {
        let is_early = |admission: &Result<_, Refusal>| admission.as_ref().is_err_and(waits_for_its_time);
        let early = admissions.iter().enumerate().filter(|(_, admission)| is_early(admission));
        let early: HashSet<usize> = early.map(|(at, _)| at).collect();
        if !early.is_empty() {
            return Ok(with_those_behind(part, early));
        }
        self.held_places(tx, candidates, admissions).await
    }

    /// Applies the fresh messages of a batch, in their order.
    async fn apply_all(
        &self,
        tx: &mut S::Tx,
        candidates: &[Candidate<'_>],
        admissions: AdmittedBatch<S::Guard>,
        failures: &[u32],
    ) -> Result<Handled, Attempt> {
        let mut handled = Handled::default();
        let mut run: Vec<Fresh<'_, S::Guard>> = Vec::new();
        for (at, (admission, candidate)) in admissions.into_iter().zip(candidates).enumerate() {
            let Ok(admitted): Result<Admitted<_>, Refusal> = admission else { continue };
            let Ok(guard) = admitted else {
                handled.duplicates += 1;
                continue;
            };
            handled.applied.push(candidate.message.id);
            let goes_along = run.last().is_some_and(|last| {
                last.candidate.message.kind == candidate.message.kind
                    && self.store.takes_many(candidate.message)
            });
            if !goes_along {
                self.apply_run(tx, &mut run).await?;
            }
            run.push(Fresh { at, guard, candidate, failures: failures[at] });
        }
        self.apply_run(tx, &mut run).await?;
        Ok(handled)
    }

    /// Counts and logs a batch that is committed.
    fn batch_applied(&self, handled: &Handled, begun_at: Instant) {
        let Handled { applied, duplicates } = handled;
        self.succeeded(applied.len(), begun_at.elapsed());
        self.meter.duplicates(*duplicates);
        let ids: Vec<_> = applied.iter().map(ToString::to_string).collect();
        tracing::debug!(consumer = %self.consumer, duplicates, message_ids = ids.join(" "), "batch applied");
        applied.iter().for_each(|id| self.crash(CrashPoint::AfterCommit, *id));
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
            self.received(tenant, message, fresh.failures)
        };
        let received: Vec<Received> = run.iter().map(facts).collect();
        if let Err(error) = self.handle_many(tx, &run[0].guard, &messages, &received).await {
            let error = error_text(&error);
            let messages = messages.len();
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
    ) -> Result<(), Option<BoxedError>> {
        let Candidate { tenant, message } = candidate;
        let received = self.received(tenant, message, failures);
        let result = match self.handle(tx, &guard, message, &received).await {
            Ok(result) => result,
            // This includes an unavailable dependency: it may concern only this message, and the
            // others continue.
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
