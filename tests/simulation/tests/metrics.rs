//! Compares the tables of metrics with what the engine, the maintenance and the runner emit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use engine::maintenance::Maintenance;
use engine::monitor::Monitor;
use engine::simulation::Event;
use engine::telemetry::{History, Looks, Telemetry};
use message::{Topic, Unrouted};
use outbox_log::admin::{
    AuditQuery, AuditRecord, AuditSlice, Backlog, Blocker, ChosenEntry, CursorHistory, DecideError, Desk,
    EditRecord, ListedEntry, LogAdmin, Operation, OperatorDecision, ParkedContent, Picture, RelayStatus,
};
use outbox_log::retention::{Expired, ForgetError, LogRetention, Segment};
use outbox_log::{Cursor, EntryId, ExceptionState, LogError, Mark, Pause, PauseScope, RelayName};
use simulation::{Schedule, run};
use tests::Counters;
use tests::counters::Emitted;
use time::OffsetDateTime;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Time between two looks of the monitor.
const INTERVAL: Duration = Duration::from_secs(15);
/// Number of schedules, in which each metric of the engine is emitted.
const SCHEDULES: u64 = 60;

/// An outbox with one old segment. The first call that removes it panics.
struct OldHistory(AtomicBool);

#[async_trait]
impl LogRetention for OldHistory {
    async fn segments(&self, _: Duration) -> Result<Vec<Segment>, LogError> {
        let age = Some(Duration::from_secs(60));
        Ok(vec![Segment {
            number: 0,
            newest: None,
            newest_age: age,
            oldest_age: age,
            bytes: Some(8192),
            held_back: None,
        }])
    }

    async fn expire(&self, _: Duration) -> Result<Expired, LogError> {
        assert!(self.0.swap(true, Ordering::SeqCst), "the first look fails");
        let mut expired = Expired::default();
        expired.segments = 1;
        Ok(expired)
    }

    async fn forget_decisions(&self, _: Duration) -> Result<u64, LogError> {
        Ok(0)
    }

    async fn forget(&self, _: &RelayName, _: bool) -> Result<(), ForgetError> {
        unreachable!("maintenance forgets nobody")
    }
}

/// Runs the maintenance for some simulated minutes, in the same thread.
fn maintain() {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (log, stop) = (Arc::new(OldHistory(AtomicBool::new(false))), CancellationToken::new());
        let telemetry = History::new(&RelayName::new("orders").unwrap());
        let maintenance = Maintenance { log, keep: Duration::ZERO, keep_decisions: None, telemetry };
        let running = tokio::spawn(maintenance.keep_running(stop.clone()));
        tokio::time::sleep(Duration::from_secs(300)).await;
        stop.cancel();
        running.await.unwrap();
    });
}

/// Reports what schedules have not: entries that a filter excludes, and messages that a broker
/// routes nowhere.
fn report_the_rest() {
    let name = RelayName::new("orders").unwrap();
    let telemetry = Telemetry::new(&name, "a database", "a broker", 1);
    telemetry.events(vec![Event::LeftOut(1)], Duration::ZERO);
    telemetry.unrouted(&[Unrouted { topic: Topic::new("orders").unwrap(), messages: 1 }]);
}

/// A database that one relay has led, with a cursor of another history than the server's. The first
/// query panics; the relay is forgotten before the one after `looks_max`.
struct OneRelay {
    looks: AtomicU64,
    looks_max: u64,
}

#[async_trait]
impl LogAdmin for OneRelay {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        unreachable!("the monitor asks for its own relay")
    }

    async fn relay(&self, _: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        assert!(look > 0, "the first look fails");
        if look > self.looks_max {
            return Ok(None);
        }
        Ok(Some(RelayStatus {
            relay: String::from("orders"),
            epoch: 1,
            holder: None,
            checkpoint_age: Duration::ZERO,
            taken_for: None,
            cursor: Cursor::at(Mark::new("1")),
            broker_trouble: None,
            standbys: None,
            history: Some(CursorHistory {
                system_identifier: String::from("7"),
                timeline: 1,
                is_present: false,
            }),
            backlog: Backlog { entries_max: 7, oldest: None, parked: 2, oldest_parked: None },
            exceptions: BTreeMap::new(),
            parked: Vec::new(),
        }))
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        Ok(None)
    }

    async fn picture(&self, _: &RelayName) -> Result<Picture, LogError> {
        unreachable!("the monitor asks for its own relay")
    }

    async fn list(
        &self,
        _: &RelayName,
        _: ExceptionState,
        _: EntryId,
        _: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        unreachable!("the monitor lists nothing")
    }

    async fn discarded(&self, _: &RelayName, _: &[Uuid]) -> Result<Vec<ListedEntry>, LogError> {
        unreachable!("the monitor lists nothing")
    }

    async fn held(&self, _: &RelayName, _: u32) -> Result<Vec<ListedEntry>, LogError> {
        unreachable!("the monitor lists nothing")
    }

    async fn decide(
        &self,
        _: &RelayName,
        _: &[ChosenEntry],
        _: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        unreachable!("the monitor decides nothing")
    }

    fn desk(&self, _: &RelayName) -> Box<dyn Desk> {
        unreachable!("the monitor decides nothing")
    }

    async fn audit_before(&self, _: &RelayName, _: i64, _: u32) -> Result<Vec<AuditRecord>, LogError> {
        unreachable!("the monitor asks for no decisions")
    }

    async fn audited(&self, _: &RelayName, _: &AuditQuery) -> Result<AuditSlice, LogError> {
        unreachable!("the monitor asks for no decisions")
    }

    async fn audit_of(&self, _: &RelayName, _: Uuid, _: u32) -> Result<Vec<AuditRecord>, LogError> {
        unreachable!("the monitor asks for no decisions")
    }

    async fn content(&self, _: &RelayName, _: &ChosenEntry) -> Result<Option<ParkedContent>, LogError> {
        unreachable!("the monitor reads no content")
    }

    async fn edit(&self, _: &RelayName, _: i64) -> Result<Option<EditRecord>, LogError> {
        unreachable!("the monitor asks for no decisions")
    }

    async fn pauses(&self, _: &RelayName) -> Result<Vec<Pause>, LogError> {
        Ok(Vec::new())
    }

    async fn pause(&self, _: &RelayName, _: &PauseScope, _: &str, _: &str) -> Result<bool, LogError> {
        Ok(false)
    }

    async fn resume(
        &self,
        _: &RelayName,
        _: &PauseScope,
        _: Option<OffsetDateTime>,
        _: &str,
        _: &str,
    ) -> Result<bool, LogError> {
        Ok(false)
    }

    async fn operations_before(&self, _: &RelayName, _: i64, _: u32) -> Result<Vec<Operation>, LogError> {
        Ok(Vec::new())
    }

    async fn operations_of(
        &self,
        _: &RelayName,
        _: &str,
        _: i64,
        _: u32,
    ) -> Result<Vec<Operation>, LogError> {
        Ok(Vec::new())
    }
}

/// Looks at a database for some time, in the same thread.
fn monitor(looks_max: u64, lasts: Duration) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (name, stop) = (RelayName::new("orders").unwrap(), CancellationToken::new());
        let looks = Looks::new(&name);
        let log = Arc::new(OneRelay { looks: AtomicU64::new(0), looks_max });
        let monitor = Monitor { log, name, interval: INTERVAL, looks };
        let running = tokio::spawn(monitor.keep_running(stop.clone()));
        tokio::time::sleep(lasts).await;
        stop.cancel();
        running.await.unwrap();
    });
}

/// Goal: gauges do not stay as they were when a bug ends the queries, or when the relay is
/// forgotten. Oracle: a scrape after the first query, which panics, after the second one, and after
/// the relay is gone.
#[test]
fn the_gauges_of_the_database_follow_bugs_and_forgotten_relays() {
    let scraped = |looks: u32| {
        let counters = Counters::default();
        let lasts = INTERVAL * looks + Duration::from_secs(1);
        metrics::with_local_recorder(&counters, || monitor(2, lasts));
        let relay = ("relay", "orders");
        let cursor = [relay, ("system_identifier", "7"), ("timeline", "1")];
        let one = |name| counters.gauge(name, &[relay]);
        [
            one("relay_database_up"),
            one("relay_backlog_messages"),
            counters.gauge("relay_cursor_info", &cursor),
        ]
    };
    assert_eq!(scraped(0), [0.0, 0.0, 0.0], "the queries have ended");
    assert_eq!(scraped(1), [1.0, 9.0, 1.0], "they have begun again");
    assert_eq!(scraped(2), [1.0, 9.0, 1.0]);
    assert_eq!(scraped(3), [1.0, 0.0, 0.0], "the relay is forgotten");
}

fn emitted() -> Counters {
    let counters = Counters::default();
    metrics::with_local_recorder(&counters, || {
        engine::telemetry::describe();
        inbox::telemetry::describe();
        for seed in 0..SCHEDULES {
            assert!(run(&Schedule::of(seed), None, false).failures.is_empty(), "seed {seed}");
        }
        maintain();
        monitor(u64::MAX, INTERVAL + Duration::from_secs(1));
        report_the_rest();
    });
    counters
}

#[test]
fn the_tables_of_metrics_are_what_is_emitted() {
    let counters = emitted();
    let (described, emitted) = (counters.described(), counters.emitted());
    assert!(!emitted.is_empty(), "nothing is emitted");
    let labels: BTreeMap<_, _> = engine::telemetry::METRICS
        .iter()
        .chain(inbox::telemetry::METRICS)
        .map(|metric| (metric.name, metric.labels))
        .collect();
    for Emitted { name, kind, labels: carried } in &emitted {
        assert_eq!(described.get(name), Some(kind), "{name} is emitted and not in its table so");
        assert_eq!(
            Some(&carried.iter().map(String::as_str).collect::<Vec<_>>()[..]),
            labels.get(name.as_str()).copied(),
            "labels of {name}"
        );
    }
    let silent: Vec<_> = described
        .keys()
        // The program counts the lines of its log.
        .filter(|name| name.starts_with("relay_") && **name != engine::telemetry::LOG_LINES_DROPPED)
        .filter(|name| !emitted.iter().any(|one| one.name == **name))
        .collect();
    assert!(silent.is_empty(), "in the table of the relay, and never emitted: {silent:?}");
    let count = emitted.iter().filter(|one| one.name.starts_with("inbox_")).count();
    eprintln!("{count} of the runner's metrics and all of the relay's, in {SCHEDULES} schedules");
}
