//! Stores lease, cursor and exceptions.

use std::time::Duration;

use async_trait::async_trait;
use checker::LeaseEvent;
use message::MessageId;
use outbox_log::{
    Acquired, CheckpointStore, Cursor, EntryId, ExceptionChange, Fenced, Lease, LogError, OtherHolder,
};
use tokio::time::Instant;

use super::connection::Connection;
use crate::breakage::Breakage;
use crate::fault::{Call, Moment};
use crate::process::ProcessId;
use crate::world::{State, pass};

pub(super) struct SimulatedCheckpointStore {
    pub(super) connection: Connection,
    /// The history in which the lease was granted.
    pub(super) history: u64,
}

#[async_trait]
impl CheckpointStore for SimulatedCheckpointStore {
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        let process = self.connection.process;
        self.connection.call(Call::Acquire, |state| state.other_holder(process)).await
    }

    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        let process = self.connection.process;
        let acquire = |state: &mut State| (state.acquire(process, ttl), state.outbox.history);
        let (acquired, history) = self.connection.call(Call::Acquire, acquire).await?;
        self.history = history;
        Ok(acquired)
    }

    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError> {
        let process = self.connection.process;
        let history = self.history;
        self.connection
            .call(Call::Renew, |state| {
                state.check_history(history)?;
                let fenced = state.fence(process, epoch, "renewal");
                if fenced == Fenced::Held {
                    let until = Instant::now() + ttl;
                    state.outbox.relay.holder = Some((process, until));
                    state.leases.insert(process, until);
                }
                Ok(fenced)
            })
            .await?
    }

    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        let process = self.connection.process;
        if self.connection.world.lock().stall(process, Moment::Checkpoint) {
            tokio::task::yield_now().await;
        }
        let commit_ms = self.connection.world.lock().commit_ms;
        pass(commit_ms.into()).await;
        self.connection
            .call(Call::Checkpoint, |state| state.checkpoint(process, epoch, cursor, changes))
            .await?
    }

    async fn doubt(
        &mut self,
        _: &Cursor,
        _: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        unreachable!("nothing is published in transactions")
    }

    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError> {
        let process = self.connection.process;
        let history = self.history;
        self.connection
            .call(Call::Release, |state| {
                state.check_history(history)?;
                let fenced = state.fence(process, epoch, "release");
                if fenced == Fenced::Held {
                    state.outbox.relay.holder = None;
                    state.leases.insert(process, Instant::now());
                }
                Ok(fenced)
            })
            .await?
    }
}

impl State {
    fn other_holder(&self, process: ProcessId) -> Option<OtherHolder> {
        let now = Instant::now();
        let (holder, until) = self.outbox.relay.holder.filter(|(holder, _)| *holder != process)?;
        let is_busy = until > now && !self.is_broken(Breakage::SharedLease);
        is_busy.then(|| OtherHolder { holder: holder.to_string(), expires_in: until - now })
    }

    fn acquire(&mut self, process: ProcessId, ttl: Duration) -> Acquired {
        if let Some(OtherHolder { holder, expires_in }) = self.other_holder(process) {
            return Acquired::Busy { holder, expires_in };
        }
        let now = Instant::now();
        let is_shared = self.is_broken(Breakage::SharedLease);
        let relay = &mut self.outbox.relay;
        let before = relay.holder.filter(|(holder, _)| *holder != process);
        if !is_shared || relay.epoch == 0 {
            relay.epoch += 1;
        }
        relay.holder = Some((process, now + ttl));
        let epoch = relay.epoch;
        let cursor = self.outbox.granted_cursor();
        self.leases.insert(process, now + ttl);
        self.outbox.leases.push(LeaseEvent::Granted {
            lease: self.outbox.lease(),
            epoch: epoch.unsigned_abs(),
            holder: process.to_string().into(),
        });
        self.note(format_args!("{process} leads, epoch {epoch}, {cursor:?}"));
        let taken_over_from = before.map(|(holder, _)| holder.to_string());
        Acquired::Granted { lease: Lease { epoch, ttl }, cursor, taken_over_from }
    }

    /// Decides whether a write is applied, and records the write either way.
    pub(super) fn fence(&mut self, process: ProcessId, epoch: i64, what: &str) -> Fenced {
        let relay = &self.outbox.relay;
        let is_stale = relay.epoch != epoch || relay.holder.is_none();
        let is_unfenced = self.is_broken(Breakage::StaleCheckpoint) && what == "checkpoint";
        let is_applied = !is_stale || is_unfenced;
        self.outbox.wrote(process, epoch, is_applied, what);
        self.note(format_args!("{process} {what} under epoch {epoch}: {is_applied}"));
        if is_applied { Fenced::Held } else { Fenced::Lost }
    }
}
