//! The runner's seam.

use std::sync::Arc;
use std::time::Duration;

use inbox::Window;
use inbox::simulation::{Admitted, Failed, Forget, HeldMessages, MessageName, Store};
use inbox::{
    AdmitError, Attempt, Candidate, Cause, CommitError, ConsumerName, Duplicate, Failures, HandlerError,
    OpenError, Reason, Received, Refusal, StoreError, Tenant, UnknownCommit,
};
use message::{Committed, Delivery, Fingerprint, Message, MessageId};
use rand::Rng;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::tables::{NotedFailures, Remembered};
use super::transaction::{SimulatedTransaction, content};
use crate::breakage::Breakage;
use crate::fault::{CommitFault, HandlerFault};
use crate::process::ProcessId;
use crate::schedule::Defect;
use crate::world::{EPOCH, State, World, pass};

/// How long a transaction waits for another one's row before the database reports a deadlock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The consumers' database and handler, as one process reaches them.
#[derive(Debug)]
pub(crate) struct SimulatedInbox {
    pub(crate) world: Arc<World>,
    pub(crate) process: ProcessId,
    pub(crate) consumer: ConsumerName,
}

fn away(what: &str) -> StoreError {
    StoreError::broken(what.to_owned(), "simulated")
}

impl State {
    /// Returns whether a call fails.
    fn fails(&mut self) -> bool {
        let is_hit = self.armed.inbox.iter_mut().any(|left| {
            let is_now = *left == 0;
            *left = left.saturating_sub(1);
            is_now
        });
        if is_hit {
            self.armed.inbox.retain(|left| *left > 0);
        }
        is_hit || self.inbox.is_down()
    }

    fn window(&self) -> Window {
        let day = Duration::from_secs(86_400);
        Window {
            now: self.database_time(),
            retention: 14 * day,
            skew_max: Duration::from_secs(300),
            retained_from: EPOCH - 14 * day,
        }
    }
}

impl SimulatedInbox {
    /// Makes a call that takes time and can fail.
    async fn call<T>(&self, what: &str, apply: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let latency = self.world.lock().latency();
        pass(latency).await;
        let mut state = self.world.lock();
        if state.fails() {
            state.note(format_args!("{} cannot {what}", self.process));
            return Err(away(what));
        }
        Ok(apply(&mut state))
    }

    /// Inserts the row as soon as no other open transaction has it. Returns the stored row if there
    /// is one.
    async fn insert(
        &self,
        tx: &mut SimulatedTransaction,
        message: &Message,
    ) -> Result<Option<Remembered>, StoreError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let latency = self.world.lock().latency();
        pass(latency).await;
        loop {
            let unlocked = self.world.inbox_unlocked.notified();
            {
                let mut state = self.world.lock();
                if state.fails() {
                    tx.is_broken = true;
                    return Err(away("admit a message"));
                }
                if state.is_broken(Breakage::GuardOff) {
                    return Ok(None);
                }
                let tables = &state.inbox;
                if let Some(stored) =
                    tables.rows.get(&message.id).or_else(|| tables.dead_rows.get(&message.id))
                {
                    return Ok(Some(stored.clone()));
                }
                if let Some((_, fingerprint, content)) = tx.rows.iter().find(|(id, ..)| *id == message.id) {
                    let (fingerprint, content) = (*fingerprint, content.clone());
                    let processed_at = state.database_time();
                    return Ok(Some(Remembered { fingerprint, processed_at, content }));
                }
                let holder = *state.inbox.locks.entry(message.id).or_insert(tx.number);
                if holder == tx.number {
                    let row = (message.id, Fingerprint::of(message), content(message));
                    if state.is_broken(Breakage::GuardApart) {
                        let (id, fingerprint, content) = row;
                        let processed_at = state.database_time();
                        let stored = Remembered { fingerprint, processed_at, content };
                        state.inbox.rows.insert(id, stored);
                    } else {
                        tx.rows.push(row);
                    }
                    return Ok(None);
                }
            }
            if tokio::time::timeout_at(deadline, unlocked).await.is_err() {
                tx.is_broken = true;
                return Err(away("admit a message: deadlock"));
            }
        }
    }

    /// Returns the fault of the current call of the handler.
    fn next_handler_fault(&self) -> Option<HandlerFault> {
        let mut state = self.world.lock();
        let fault = state.armed.handlers.pop()?;
        state.note(format_args!("{} handler fails: {fault:?}", self.process));
        Some(fault)
    }

    /// Commits, or fails as planned.
    fn end(
        &self,
        mut tx: SimulatedTransaction,
        fault: Option<CommitFault>,
    ) -> Result<Vec<Committed>, CommitError> {
        let mut state = self.world.lock();
        let commit = UnknownCommit::default();
        let unknown = || CommitError::Unknown { commit: commit.clone(), source: "simulated".into() };
        if tx.is_broken {
            return Err(CommitError::RolledBack { reason: "an earlier statement failed", source: None });
        }
        if state.inbox.is_down() {
            return Err(unknown());
        }
        match fault {
            Some(CommitFault::UnknownLost) => Err(unknown()),
            Some(CommitFault::Conflict) => {
                Err(CommitError::RolledBack { reason: "simulated", source: Some(away("commit").into()) })
            }
            Some(CommitFault::UnknownApplied) => {
                tx.apply(&mut state);
                Err(unknown())
            }
            None | Some(CommitFault::Slow { .. }) => {
                let proofs = tx.proofs();
                tx.apply(&mut state);
                Ok(proofs)
            }
        }
    }

    fn compare(&self, stored: &Remembered, message: &Message) -> Result<Duplicate, Refusal> {
        let received = Fingerprint::of(message);
        let Remembered { fingerprint, processed_at, .. } = *stored;
        if fingerprint == received {
            return Ok(Duplicate { processed_at, result: None, dead_letter: None });
        }
        let consumer = self.consumer.clone();
        Err(Refusal::KeyReused { id: message.id, consumer, stored: fingerprint, received, processed_at })
    }
}

/// Simulated consumers hold no messages of a key.
impl HeldMessages for SimulatedInbox {}

impl Store for SimulatedInbox {
    type Tx = SimulatedTransaction;
    type Guard = MessageId;

    fn now(&self) -> OffsetDateTime {
        self.world.lock().database_time()
    }

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let number = self
            .call("begin", |state| {
                state.inbox.last_transaction += 1;
                state.inbox.last_transaction
            })
            .await?;
        Ok(SimulatedTransaction {
            world: Arc::clone(&self.world),
            process: self.process,
            number,
            admitted: Vec::new(),
            rows: Vec::new(),
            effects: Vec::new(),
            forgotten: Vec::new(),
            is_broken: false,
        })
    }

    async fn admit(
        &self,
        tx: &mut Self::Tx,
        _scope: &Tenant,
        message: &Message,
    ) -> Result<Admitted<Self::Guard>, AdmitError> {
        let window = self.world.lock().window();
        window.validate(message.id)?;
        let stored = self.insert(tx, message).await?;
        let admitted = match stored {
            Some(stored) => Err(self.compare(&stored, message)?),
            None => Ok(message.id),
        };
        tx.admitted.push(message.id);
        Ok(admitted)
    }

    async fn admit_batch(
        &self,
        tx: &mut Self::Tx,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Result<Admitted<Self::Guard>, Refusal>>, AdmitError> {
        let mut admissions = Vec::new();
        for Candidate { tenant, message } in candidates {
            admissions.push(match self.admit(tx, tenant, message).await {
                Ok(admitted) => Ok(admitted),
                Err(AdmitError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            });
        }
        Ok(admissions)
    }

    async fn handle(
        &self,
        tx: &mut Self::Tx,
        message: &Message,
        _received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let latency = self.world.lock().latency();
        pass(latency).await;
        match self.next_handler_fault() {
            None => {}
            Some(HandlerFault::Retry) => return Err(HandlerError::retry("simulated")),
            Some(HandlerFault::Unavailable) => return Err(HandlerError::unavailable("simulated")),
            // Without the hook, which would print the panic.
            Some(HandlerFault::Panic) => std::panic::resume_unwind(Box::new("simulated")),
            Some(HandlerFault::Hang { for_ms }) => pass(for_ms.into()).await,
        }
        let mut state = self.world.lock();
        let defect = state.defect(message.id);
        let calls = state.inbox.calls.entry(message.id).or_default();
        *calls += 1;
        match defect {
            Defect::Rejected => return Err(HandlerError::reject("simulated")),
            Defect::Fails(often) if *calls <= u32::from(often) => {
                return Err(HandlerError::retry("simulated"));
            }
            _ => {}
        }
        tx.effects.push((message.id, content(message)));
        Ok(None)
    }

    async fn complete(
        &self,
        _tx: &mut Self::Tx,
        _guard: MessageId,
        _result: &[u8],
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        messages: &[MessageName<'_>],
        _forget: Forget,
    ) -> Result<(), StoreError> {
        let ids = messages.iter().map(|message| message.id);
        self.call("forget attempts", |_| tx.forgotten.extend(ids)).await
    }

    async fn commit(&self, mut tx: Self::Tx) -> Result<Vec<Committed>, CommitError> {
        let (latency, is_early, fault) = {
            let mut state = self.world.lock();
            (state.latency(), state.is_broken(Breakage::ProofBeforeCommit), state.armed.commits.pop())
        };
        if is_early {
            // The broker gets the proof, and the commit never happens if the process dies or the
            // database fails.
            let proofs = tx.proofs();
            let world = Arc::clone(&self.world);
            if fault.is_none() && !world.lock().inbox.is_down() {
                tx.apply(&mut world.lock());
            }
            return Ok(proofs);
        }
        pass(latency).await;
        let (slow_before, slow_after) = match fault {
            Some(CommitFault::Slow { for_ms, is_before: true }) => (for_ms, 0),
            Some(CommitFault::Slow { for_ms, .. }) => (0, for_ms),
            _ => (0, 0),
        };
        pass(slow_before.into()).await;
        let outcome = self.end(tx, fault);
        pass(slow_after.into()).await;
        outcome
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        let done = self.call("roll back", |_| ()).await;
        drop(tx);
        done
    }

    async fn record_failure(
        &self,
        _scope: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> Result<Failures, StoreError> {
        self.call("count a failure", |state| {
            let now = state.database_time();
            let uniform = state.rng.random();
            let failures = state.inbox.failures.entry(id).or_insert_with(|| NotedFailures {
                attempts: 0,
                uncounted: 0,
                error: String::new(),
                first_failed_at: now,
                next_at: now,
            });
            failures.error = failed.error.to_owned();
            let mut delay = Duration::ZERO;
            failures.uncounted += 1;
            if let Some(pause) = failed.pause {
                failures.uncounted = 0;
                failures.attempts += 1;
                delay = pause.delay(failures.attempts, uniform);
                failures.next_at = now + delay;
            }
            let age = Duration::try_from(now - failures.first_failed_at).unwrap_or_default();
            Failures { attempts: failures.attempts, uncounted: failures.uncounted, age, delay }
        })
        .await
    }

    async fn attempt(&self, _scope: &Tenant, id: MessageId) -> Result<Option<Attempt>, StoreError> {
        self.call("look up the attempts", |state| {
            state.inbox.failures.get(&id).map(|failures| Attempt {
                attempts: failures.attempts,
                last_error: failures.error.clone(),
                first_failed_at: failures.first_failed_at,
                next_at: failures.next_at,
            })
        })
        .await
    }

    async fn dead_letter(
        &self,
        _scope: &Tenant,
        delivery: &Delivery,
        Cause { reason, .. }: Cause,
    ) -> Result<Committed, StoreError> {
        self.call("store a dead letter", |state| {
            if let Ok(message) = &delivery.message {
                let name = state.name(message.id);
                state.note(format_args!("{} dead-letters m{name}: {reason}", self.process));
                state.inbox.dead.insert(message.id);
                if matches!(reason, Reason::Poison | Reason::Rejected) {
                    let (fingerprint, processed_at) = (Fingerprint::of(message), state.database_time());
                    let row = Remembered { fingerprint, processed_at, content: content(message) };
                    state.inbox.dead_rows.entry(message.id).or_insert(row);
                }
                state.inbox.failures.remove(&message.id);
            }
            Committed::attest(delivery.subject())
        })
        .await
    }

    async fn maintain(&self) -> Result<(), OpenError> {
        Ok(())
    }
}
