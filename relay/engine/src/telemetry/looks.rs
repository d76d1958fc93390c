//! Gauges that are set after each query of the database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use message::Fault;
use metrics::{Gauge, gauge};
use outbox_log::admin::{Blocker, CursorHistory, RelayStatus};
use outbox_log::{ExceptionState, LogError, RelayName};
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{debug, warn};

/// The gauges of one relay whose values only the database knows.
#[derive(Clone)]
pub struct Looks {
    relay: Arc<str>,
    up: Gauge,
    backlog: Gauge,
    oldest_pending: Gauge,
    lease_held: Gauge,
    checkpoint_age: Gauge,
    held_back_seconds: Gauge,
    held_back_pid: Gauge,
    parked: HashMap<(ExceptionState, Option<Fault>), Gauge>,
    /// The open transaction that held rows back at the last look.
    sighted: Option<Sighted>,
    /// The history that was reported last.
    history: Option<HistoryLabels>,
    is_up: bool,
}

/// The history of a server, as the gauge about it names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HistoryLabels {
    system_identifier: String,
    timeline: i64,
}

/// An open transaction, and when the relay first saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sighted {
    pid: Option<i32>,
    transaction: String,
    at: Instant,
}

impl Sighted {
    /// Returns the transaction that is seen now. If it is the same as before, it keeps its first
    /// time.
    fn of(blocker: &Blocker, before: Option<Self>) -> Self {
        let is_same = |it: &Self| it.pid == blocker.pid() && it.transaction == blocker.transaction();
        before.filter(is_same).unwrap_or_else(|| Self {
            pid: blocker.pid(),
            transaction: blocker.transaction().to_owned(),
            at: Instant::now(),
        })
    }

    /// Returns how long the transaction has been open. Where the server hides that, returns the
    /// time since the relay first saw it: an alert on the age still fires, one query later.
    fn age(&self, blocker: &Blocker) -> Duration {
        blocker.age().unwrap_or_else(|| self.at.elapsed())
    }
}

impl std::fmt::Debug for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Looks").field("relay", &self.relay).finish_non_exhaustive()
    }
}

impl Looks {
    /// Creates the gauges of the relay `name`.
    #[must_use]
    pub fn new(name: &RelayName) -> Self {
        let relay: Arc<str> = name.as_str().into();
        let gauge = |name: &'static str| gauge!(name, "relay" => Arc::clone(&relay));
        Self {
            up: gauge("relay_database_up"),
            backlog: gauge("relay_backlog_messages"),
            oldest_pending: gauge("relay_oldest_pending_seconds"),
            lease_held: gauge("relay_lease_held"),
            checkpoint_age: gauge("relay_checkpoint_age_seconds"),
            held_back_seconds: gauge("relay_held_back_seconds"),
            held_back_pid: gauge("relay_held_back_pid"),
            parked: HashMap::new(),
            sighted: None,
            history: None,
            is_up: true,
            relay,
        }
    }

    /// Records a successful query. `status` is missing for a relay that has never led, or that was
    /// forgotten.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; counts stay far below 2^52")]
    pub(crate) fn seen(&mut self, status: Option<&RelayStatus>, blocker: Option<&Blocker>) {
        self.is_up = true;
        self.up.set(1.0);
        self.sighted = blocker.map(|blocker| Sighted::of(blocker, self.sighted.take()));
        let held_back = blocker.zip(self.sighted.as_ref()).map(|(blocker, sighted)| sighted.age(blocker));
        self.held_back_seconds.set(held_back.map_or(0.0, |age| age.as_secs_f64()));
        self.held_back_pid.set(blocker.and_then(Blocker::pid).map_or(0.0, f64::from));
        let Some(status) = status else { return self.unknown() };
        self.backlog.set(status.backlog.waiting_max() as f64);
        let oldest = status.backlog.oldest_waiting();
        self.oldest_pending.set(oldest.map_or(0.0, |(_, age)| age.as_secs_f64()));
        let is_held = status.holder.as_ref().is_some_and(|holder| holder.expires_in.is_some());
        self.lease_held.set(f64::from(u8::from(is_held)));
        self.checkpoint_age.set(status.checkpoint_age.as_secs_f64());
        self.parked(status);
        if let Some(history) = &status.history {
            self.history(history);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; counts stay far below 2^52")]
    fn parked(&mut self, status: &RelayStatus) {
        // States without an entry are reported as 0: an alert needs a series that already exists.
        for state in [ExceptionState::Held, ExceptionState::Retrying, ExceptionState::Dead] {
            self.parked.entry((state, None)).or_insert_with(|| parked(&self.relay, state, None));
        }
        self.parked.values().for_each(|gauge| gauge.set(0.0));
        for found in &status.parked {
            let (state, cause) = (found.state, found.cause);
            let gauge =
                self.parked.entry((state, cause)).or_insert_with(|| parked(&self.relay, state, cause));
            gauge.set(found.count as f64);
        }
    }

    /// Sets the gauges of a relay that the database does not know: nothing waits for it.
    fn unknown(&mut self) {
        for gauge in [&self.backlog, &self.oldest_pending, &self.lease_held, &self.checkpoint_age] {
            gauge.set(0.0);
        }
        self.parked.values().for_each(|gauge| gauge.set(0.0));
        if let Some(former) = self.history.take() {
            self.info(&former).set(0.0);
        }
    }

    /// Records that a bug in this program has ended the queries.
    pub(crate) fn ended(&mut self, fault: &JoinError) {
        self.up.set(0.0);
        self.is_up = false;
        warn!(relay = %self.relay, "a bug in this program ended the queries for metrics, which restart: {fault}");
    }

    fn history(&mut self, history: &CursorHistory) {
        let relay = Arc::clone(&self.relay);
        gauge!("relay_cursor_is_of_this_server", "relay" => relay)
            .set(f64::from(u8::from(history.is_present)));
        let present = HistoryLabels {
            system_identifier: history.system_identifier.clone(),
            timeline: history.timeline,
        };
        if self.history.as_ref() != Some(&present) {
            if let Some(former) = self.history.replace(present.clone()) {
                self.info(&former).set(0.0);
            }
            self.info(&present).set(1.0);
        }
    }

    fn info(&self, history: &HistoryLabels) -> Gauge {
        let HistoryLabels { system_identifier, timeline } = history;
        gauge!("relay_cursor_info", "relay" => Arc::clone(&self.relay),
            "system_identifier" => system_identifier.clone(), "timeline" => timeline.to_string())
    }

    /// Records a failed check. Of consecutive failures, only the first is logged as a warning.
    pub(crate) fn failed(&mut self, failure: &LogError) {
        self.up.set(0.0);
        if std::mem::take(&mut self.is_up) {
            warn!(relay = %self.relay, "the metrics of the database are out of date: {failure}");
        } else {
            debug!(relay = %self.relay, "the metrics of the database are out of date: {failure}");
        }
    }
}

fn parked(relay: &Arc<str>, state: ExceptionState, cause: Option<Fault>) -> Gauge {
    let cause = cause.map_or("none", Fault::as_str);
    gauge!("relay_parked_messages", "relay" => Arc::clone(relay), "state" => state.as_str(), "cause" => cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocker(pid: i32, transaction: &str, age: Option<Duration>) -> Blocker {
        let transaction = transaction.to_owned();
        Blocker::Session { pid, transaction, application_name: String::from("batch"), state: None, age }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hidden_age_counts_from_the_first_sighting_of_that_transaction() {
        let minute = Duration::from_secs(60);
        let hidden = blocker(7, "100", None);
        let first = Sighted::of(&hidden, None);
        tokio::time::advance(minute).await;
        let again = Sighted::of(&hidden, Some(first.clone()));
        assert_eq!(again.age(&hidden), minute);
        let told = blocker(7, "100", Some(minute * 5));
        assert_eq!(Sighted::of(&told, Some(first.clone())).age(&told), minute * 5, "the server knows better");
        // A pooled connection that runs one short transaction after another holds nothing back.
        for other in [blocker(7, "101", None), blocker(8, "100", None)] {
            assert_eq!(Sighted::of(&other, Some(first.clone())).age(&other), Duration::ZERO);
        }
    }
}
