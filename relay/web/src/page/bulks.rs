//! Decisions about many messages that this process carries out. The audits have their changes; this
//! has only the running decisions, and the reasons of refusals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operate::Signed;
use operate::dead::{BulkReport, Progress};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Maximum decisions that run at once; each has a session in each database.
const RUNNING_MAX: usize = 2;
/// How long the refusals of a finished decision remain available.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// The state of a decision in this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bulk {
    pub(crate) progress: Progress,
    /// Its author and reason.
    pub(crate) signed: Option<Signed>,
    /// Whether an operator has asked to stop it.
    pub(crate) is_stopping: bool,
    /// The reports of its parts, or the reason why it ended early; `None` while it is running.
    pub(crate) ended: Option<Result<Vec<BulkReport>, String>>,
    ended_at: Option<Instant>,
}

impl Bulk {
    /// Records how it has ended, unless that is known.
    pub(crate) fn end(&mut self, how: Result<Vec<BulkReport>, String>) {
        if self.ended.is_none() {
            self.ended = Some(how);
            self.ended_at = Some(Instant::now());
        }
    }

    /// Returns whether it ended so long ago that it is forgotten.
    fn is_old(&self) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= KEPT_FOR)
    }
}

/// A decision of this process.
pub(crate) struct Running {
    pub(crate) state: watch::Sender<Bulk>,
    pub(crate) stop: CancellationToken,
}

/// The decisions of this process.
#[derive(Default)]
pub(crate) struct Bulks(Mutex<HashMap<Uuid, Arc<Running>>>);

/// The outcome of beginning a decision.
pub(crate) enum Begun {
    /// It may run.
    New(Arc<Running>),
    /// It is running, or has run.
    Before,
    /// Too many are running.
    TooMany,
}

impl Bulks {
    /// Begins a decision, unless it has begun.
    pub(crate) fn begin(&self, id: Uuid) -> Begun {
        let mut bulks = self.lock();
        let is_over = |bulk: &Running| bulk.state.borrow().ended.is_some();
        bulks.retain(|_, bulk| !bulk.state.borrow().is_old());
        if bulks.contains_key(&id) {
            return Begun::Before;
        }
        if bulks.values().filter(|bulk| !is_over(bulk)).count() >= RUNNING_MAX {
            return Begun::TooMany;
        }
        let state = watch::Sender::new(Bulk::default());
        let running = Arc::new(Running { state, stop: CancellationToken::new() });
        bulks.insert(id, Arc::clone(&running));
        Begun::New(running)
    }

    /// Returns the state of a decision, if this process has begun it.
    pub(crate) fn get(&self, id: Uuid) -> Option<Bulk> {
        self.lock().get(&id).map(|running| running.state.borrow().clone())
    }

    /// Stops a decision after the current part. Returns whether this process runs it.
    pub(crate) fn stop(&self, id: Uuid) -> bool {
        let Some(running) = self.lock().get(&id).cloned() else { return false };
        running.stop.cancel();
        running.state.send_modify(|bulk| bulk.is_stopping = true);
        running.state.borrow().ended.is_none()
    }

    /// Stops the decisions that are running after their current parts, and logs them.
    pub(crate) fn stop_all(&self) -> Vec<watch::Receiver<Bulk>> {
        let bulks = self.lock();
        let running = bulks.iter().filter(|(_, running)| running.state.borrow().ended.is_none());
        let stopped = running.map(|(id, running)| {
            let by = running.state.borrow().signed.as_ref().map(|signed| signed.operator.name().to_owned());
            tracing::info!(
                decision = %id,
                by = by.unwrap_or_default(),
                "a decision from the page is stopped, because the relay stops"
            );
            running.stop.cancel();
            running.state.send_modify(|bulk| bulk.is_stopping = true);
            running.state.subscribe()
        });
        stopped.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Running>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until these decisions have ended.
pub(crate) async fn all_ended(bulks: Vec<watch::Receiver<Bulk>>) {
    for mut bulk in bulks {
        drop(bulk.wait_for(|bulk| bulk.ended.is_some()).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a relay that stops cuts no decision off within a part. Oracle: the work has noted its
    /// end when the wait is over; the wait does not include a decision that has ended.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_page_waits_for_its_decisions() {
        let bulks = Bulks::default();
        all_ended(bulks.stop_all()).await;
        let Begun::New(ended) = bulks.begin(Uuid::from_u128(1)) else { panic!("the first one") };
        ended.state.send_modify(|bulk| bulk.end(Ok(Vec::new())));
        let Begun::New(running) = bulks.begin(Uuid::from_u128(2)) else { panic!("the second one") };
        tokio::spawn(async move {
            running.stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            running.state.send_modify(|bulk| bulk.end(Err(String::from("stopped"))));
        });
        let stopped = bulks.stop_all();
        assert_eq!(stopped.len(), 1);
        assert!(bulks.get(Uuid::from_u128(2)).is_some_and(|bulk| bulk.is_stopping && bulk.ended.is_none()));
        all_ended(stopped).await;
        let bulk = bulks.get(Uuid::from_u128(2)).unwrap();
        assert_eq!(bulk.ended, Some(Err(String::from("stopped"))));
    }

    #[test]
    fn a_decision_begins_once_and_few_run_at_a_time() {
        let bulks = Bulks::default();
        let [one, other, third] = [1, 2, 3].map(Uuid::from_u128);
        let Begun::New(running) = bulks.begin(one) else { panic!("the first one") };
        assert!(matches!(bulks.begin(one), Begun::Before));
        assert!(matches!(bulks.begin(other), Begun::New(_)));
        assert!(matches!(bulks.begin(third), Begun::TooMany));
        assert!(bulks.stop(one) && running.stop.is_cancelled());
        running.state.send_modify(|bulk| bulk.end(Ok(Vec::new())));
        assert!(!bulks.stop(one), "it has ended");
        assert!(matches!(bulks.begin(one), Begun::Before), "it is not run again");
        assert!(matches!(bulks.begin(third), Begun::New(_)));
        assert!(bulks.get(one).is_some_and(|bulk| bulk.is_stopping) && bulks.get(Uuid::nil()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_refusals_of_a_long_decision_are_kept_from_its_end() {
        let bulks = Bulks::default();
        let [long, next, last] = [1, 2, 3].map(Uuid::from_u128);
        let Begun::New(running) = bulks.begin(long) else { panic!("the first one") };
        tokio::time::advance(KEPT_FOR * 2).await;
        running.state.send_modify(|bulk| bulk.end(Err(String::from("away"))));
        assert!(matches!(bulks.begin(next), Begun::New(_)));
        assert!(bulks.get(long).is_some_and(|bulk| bulk.ended == Some(Err(String::from("away")))));
        tokio::time::advance(KEPT_FOR).await;
        assert!(matches!(bulks.begin(last), Begun::New(_)));
        assert!(bulks.get(long).is_none(), "it is forgotten after a while");
    }
}
