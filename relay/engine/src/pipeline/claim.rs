//! Claims the right to lead: takes the lease, and finishes the work that an earlier term left.
//!
//! The reader's session is opened before the lease is requested. A server, a role or a pooler that
//! allows too few sessions would otherwise let the relay lead, fail and restart forever, and keep
//! out a standby with enough sessions. While another process leads, a standby has one session.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use message::{Fault, PublishError};
use outbox_log::{
    Acquired, BrokerTrouble, CheckpointStore, Cursor, EntryId, Fenced, Lease, LogError, LogReader,
    OtherHolder,
};
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Pipeline, Role};
use crate::driver::Ended;
use crate::telemetry::Telemetry;
use crate::transactions::{Continued, Recovering, Recovery};

/// The longest pause on standby: a released lease is taken over within this time. Asking who holds
/// the lease writes nothing.
const STANDBY_PAUSE_MAX: Duration = Duration::from_millis(200);
const STANDBY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The remedy for a second session that was not opened although the first one answers.
const SESSIONS: &str = "another session of this relay does get answers, so check the session limits of the \
    role, the database and the pooler (its pool size): a relay needs 2 sessions to lead, and briefly \
    2 more";

/// The epoch of the first lease of a name.
const FIRST_EPOCH: i64 = 1;

/// Tasks that a term leaves for the next one to settle before it leads.
#[derive(Default)]
pub(super) struct Open {
    /// An id that two entries share. Nothing is published before each has its own: otherwise every
    /// retry would publish the same messages again.
    pub(super) shared_id: Option<EntryId>,
    /// Whether the last term that led could not store its last checkpoint.
    pub(super) is_unstored: bool,
    /// When the broker first became unreachable, for a pipeline that needs it in order to lead.
    refused_since: Option<OffsetDateTime>,
}

/// A lease, and the cursor that came with it.
pub(super) struct Taken {
    /// Opened before the grant: it must begin before it reads.
    pub(super) reader: Box<dyn LogReader>,
    pub(super) lease: Lease,
    /// When the lease or its last renewal was requested.
    pub(super) asked_at: Instant,
    pub(super) cursor: Cursor,
}

/// The right to lead, with all obstacles settled.
pub(super) struct Claimed {
    pub(super) taken: Taken,
    /// Set if the pipeline publishes in broker transactions.
    pub(super) continued: Option<Continued>,
}

/// An attempt to lead. `Break` ends the term before it has led.
type Try<T> = Result<ControlFlow<Ended, T>, LogError>;

/// The inputs of a claim.
pub(super) struct Claim<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) checkpointer: &'a mut dyn CheckpointStore,
    pub(super) stop: &'a CancellationToken,
    pub(super) telemetry: &'a Telemetry,
}

impl Claim<'_> {
    /// Takes the lease repeatedly until everything open is settled. Not cancel-safe: drop the
    /// checkpoint store with the future.
    pub(super) async fn run(mut self, open: &mut Open) -> Try<Claimed> {
        loop {
            let taken = match self.take().await? {
                ControlFlow::Continue(taken) => taken,
                ControlFlow::Break(ended) => return Ok(ControlFlow::Break(ended)),
            };
            let settled = match open.shared_id {
                Some(id) => self.renumber(id, taken.lease, open).await?,
                None => self.continue_transactions(taken, open).await?,
            };
            match settled {
                ControlFlow::Continue(Some(claimed)) => {
                    open.refused_since = None;
                    return Ok(ControlFlow::Continue(claimed));
                }
                // The next lease comes with another cursor.
                ControlFlow::Continue(None) => {}
                ControlFlow::Break(ended) => return Ok(ControlFlow::Break(ended)),
            }
        }
    }

    /// Waits for the lease.
    async fn take(&mut self) -> Try<Taken> {
        loop {
            // It writes nothing, so a stop may drop it.
            let asked = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(ControlFlow::Break(Ended::Stopped)),
                asked = self.checkpointer.other_holder() => asked?,
            };
            let busy = match asked {
                Some(other) => other,
                None => match self.take_with_reader().await? {
                    ControlFlow::Continue(Ok(taken)) => return Ok(ControlFlow::Continue(taken)),
                    // Another process was faster.
                    ControlFlow::Continue(Err(other)) => other,
                    ControlFlow::Break(ended) => return Ok(ControlFlow::Break(ended)),
                },
            };
            let OtherHolder { holder, expires_in } = busy;
            self.stand_by(holder);
            // Ask again soon after the lease can have expired, and often enough to notice a
            // release.
            let pause = expires_in.min(self.pipeline.settings.renew_interval()).min(STANDBY_PAUSE_MAX);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(ControlFlow::Break(Ended::Stopped)),
                () = tokio::time::sleep(pause.max(STANDBY_PAUSE_MIN)) => {}
            }
        }
    }

    /// Opens the reader, and then requests the lease once.
    async fn take_with_reader(&mut self) -> Try<Result<Taken, OtherHolder>> {
        let opened = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(ControlFlow::Break(Ended::Stopped)),
            opened = self.pipeline.store.reader(&self.pipeline.name) => opened,
        };
        let reader = match opened {
            Ok(reader) => reader,
            Err(error) => {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return Ok(ControlFlow::Break(Ended::Stopped)),
                    told = self.beside_a_session(error) => return Err(told?),
                }
            }
        };
        let asked_at = Instant::now();
        Ok(ControlFlow::Continue(match self.checkpointer.acquire(self.pipeline.settings.lease_ttl).await? {
            Acquired::Granted { lease, cursor, taken_over_from } => {
                self.telemetry.leading(lease.epoch, taken_over_from.as_deref());
                if lease.epoch == FIRST_EPOCH {
                    self.telemetry.new_among(&self.checkpointer.left_relays().await?);
                }
                Ok(Taken { reader, lease, asked_at, cursor })
            }
            Acquired::Busy { holder, expires_in } => Err(OtherHolder { holder, expires_in }),
        }))
    }

    /// Explains why the second session was not opened. Fails if the first one does not answer
    /// either: then the number of sessions is not the cause.
    async fn beside_a_session(&mut self, error: LogError) -> Result<LogError, LogError> {
        // A server that refuses gives the reason.
        let Some(told) = unanswered(&error) else { return Ok(error) };
        self.checkpointer.other_holder().await?;
        let cause = self.pipeline.store.cause_of(&error).await;
        if cause.is_some() {
            return Ok(error.caused_by(cause));
        }
        Ok(LogError::Unavailable { reason: format!("{told}; {SESSIONS}"), source: Some(Box::new(error)) })
    }

    /// Reports the leader when it changes: the query runs several times a second.
    fn stand_by(&self, holder: String) {
        let role = Role::Standby { holder };
        if let Role::Standby { holder } = &role
            && self.pipeline.status.borrow().role != role
        {
            self.telemetry.standby(holder);
            self.pipeline.enter(role);
        }
    }

    /// Gives new ids to the later ones of the entries that share an id, and releases the lease.
    async fn renumber(&mut self, id: EntryId, lease: Lease, open: &mut Open) -> Try<Option<Claimed>> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(ControlFlow::Break(Ended::Stopped)),
            renumbered = self.checkpointer.renumber(id) => renumbered?,
        }
        open.shared_id = None;
        // `Lost` if anything was renumbered: that ends every lease.
        let _: Fenced = self.checkpointer.release(lease.epoch).await?;
        Ok(ControlFlow::Continue(None))
    }

    /// Brings the database up to the last mark, for a pipeline that publishes in broker
    /// transactions. Continues with `None` if the lease has to be taken again.
    async fn continue_transactions(&mut self, mut taken: Taken, open: &mut Open) -> Try<Option<Claimed>> {
        let Some(transactions) = &self.pipeline.transactions else {
            return Ok(ControlFlow::Continue(Some(Claimed { taken, continued: None })));
        };
        let recovering = Recovering {
            transactions,
            checkpointer: &mut *self.checkpointer,
            relay: &self.pipeline.name,
            lease: taken.lease,
            asked_at: taken.asked_at,
            renew_interval: self.pipeline.settings.renew_interval(),
            timeout: self.pipeline.settings.lease_ttl,
            telemetry: self.telemetry,
        };
        Ok(match recovering.run(&taken.cursor).await {
            Ok(Recovery::Done(recovered)) => {
                taken.cursor.transaction = None;
                taken.asked_at = recovered.asked_at;
                let continued = Some(Continued { transactions: Arc::clone(transactions), recovered });
                ControlFlow::Continue(Some(Claimed { taken, continued }))
            }
            Ok(Recovery::Again) => ControlFlow::Continue(None),
            Ok(Recovery::LeaseLost) => ControlFlow::Break(Ended::LeaseLost),
            Err(error) => {
                self.give_back(taken.lease, &error, open).await;
                return Err(error);
            }
        })
    }

    /// Records why the recovery failed, and releases the lease: another process may reach the
    /// broker, and this one may stop before its next attempt.
    async fn give_back(&mut self, lease: Lease, error: &LogError, open: &mut Open) {
        if let Some(reason) = refusal_of_broker(error) {
            let since = *open.refused_since.get_or_insert_with(OffsetDateTime::now_utc);
            let trouble = BrokerTrouble::of(reason, error.fault() == Fault::Broker, since);
            let _ = self.checkpointer.note_trouble(lease.epoch, Some(trouble)).await;
        }
        let _ = self.checkpointer.release(lease.epoch).await;
    }
}

/// Returns the text of an error about a server that did not answer.
fn unanswered(error: &LogError) -> Option<String> {
    let is_late = |error: &LogError| matches!(error, LogError::Timeout { .. });
    match error {
        LogError::Timeout { .. } => Some(error.to_string()),
        LogError::Unavailable { reason, source: Some(source) } => {
            source.downcast_ref().is_some_and(is_late).then(|| reason.clone())
        }
        _ => None,
    }
}

/// Returns why a recovery ended, if the cause was the broker or its stored state and not the
/// database.
fn refusal_of_broker(error: &LogError) -> Option<&str> {
    let (LogError::Operator { reason, source } | LogError::Unavailable { reason, source }) = error else {
        return None;
    };
    source.as_ref().is_none_or(|source| source.is::<PublishError>()).then_some(reason)
}
