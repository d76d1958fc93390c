//! The state that all simulated processes share: databases, the broker, random numbers, and what
//! was observed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use checker::Promise;
use message::MessageId;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::breakage::Breakage;
use crate::broker::Broker;
use crate::fault::{Call, CommitFault, HandlerFault, Moment};
use crate::inbox::InboxTables;
use crate::outbox::OutboxTables;
use crate::process::{Process, ProcessId};
use crate::run::Failure;
use crate::schedule::{Defect, Schedule};
use crate::trace::Trace;

/// The database's time when a schedule begins.
pub const EPOCH: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

/// A violation that only a check during the run can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of failure.
    pub failure: Failure,
    /// Its description.
    pub text: String,
}

/// Faults that wait for a call to hit.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) calls: Vec<(Call, bool)>,
    pub(crate) slow: Vec<(Call, u32, bool)>,
    pub(crate) receipts: Vec<bool>,
    pub(crate) refusals: u32,
    pub(crate) settlements: Vec<bool>,
    pub(crate) commits: Vec<CommitFault>,
    pub(crate) inbox: Vec<u8>,
    pub(crate) handlers: Vec<HandlerFault>,
    pub(crate) stalls: Vec<(Moment, u32)>,
    /// Tasks that resume paused processes.
    pub(crate) resuming: JoinSet<()>,
}

/// The state behind the lock.
pub(crate) struct State {
    pub(crate) start: Instant,
    pub(crate) rng: SmallRng,
    pub(crate) trace: Trace,
    pub(crate) outbox: OutboxTables,
    /// The state to which the outbox goes back.
    pub(crate) backup: Option<OutboxTables>,
    /// Additional duration of the relay's commits, in milliseconds.
    pub(crate) commit_ms: u8,
    pub(crate) broker: Broker,
    pub(crate) inbox: InboxTables,
    pub(crate) armed: Armed,
    pub(crate) findings: Vec<Finding>,
    /// The number of held entries after each checkpoint, with its time.
    pub(crate) held: Vec<(u64, usize)>,
    pub(crate) breakage: Option<Breakage>,
    /// The numbers of messages in the schedule, and their defects.
    pub(crate) names: HashMap<MessageId, (u32, Defect)>,
    /// Until when each process holds the lease, by the database's clock.
    pub(crate) leases: BTreeMap<ProcessId, Instant>,
    /// The processes that are alive.
    pub(crate) lives: BTreeMap<ProcessId, Arc<Process>>,
    processes: u32,
}

/// The whole state, shared.
pub struct World {
    state: Mutex<State>,
    /// The broker's next task may be due earlier than before.
    pub(crate) broker_due: Notify,
    /// The broker's log or a member's deliveries have changed.
    pub(crate) log_changed: Notify,
    /// A transaction of the inbox has ended.
    pub(crate) inbox_unlocked: Notify,
}

impl World {
    /// Creates a world at its beginning. Must be called in a runtime with a paused clock.
    #[must_use]
    pub fn new(schedule: &Schedule, breakage: Option<Breakage>, is_traced: bool) -> Arc<Self> {
        let state = State {
            start: Instant::now(),
            rng: SmallRng::seed_from_u64(schedule.seed ^ 0x5eed),
            trace: Trace::new(is_traced),
            outbox: OutboxTables::default(),
            backup: None,
            commit_ms: schedule.commit_ms,
            broker: Broker::new(schedule, breakage),
            inbox: InboxTables::default(),
            armed: Armed::default(),
            findings: Vec::new(),
            held: Vec::new(),
            breakage,
            names: HashMap::new(),
            leases: BTreeMap::new(),
            lives: BTreeMap::new(),
            processes: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            broker_due: Notify::new(),
            log_changed: Notify::new(),
            inbox_unlocked: Notify::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the milliseconds since the beginning.
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the database's time.
    pub(crate) fn database_time(&self) -> OffsetDateTime {
        EPOCH + self.start.elapsed()
    }

    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        let at = self.millis();
        self.trace.note(at, event);
    }

    pub(crate) fn found(&mut self, promise: Promise, text: String) {
        self.finding(Failure::Promise(promise), text);
    }

    pub(crate) fn found_too_much(&mut self, text: String) {
        self.finding(Failure::Memory, text);
    }

    fn finding(&mut self, failure: Failure, text: String) {
        self.note(format_args!("!! {text}"));
        self.findings.push(Finding { failure, text });
    }

    pub(crate) fn is_broken(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }

    pub(crate) fn next_process(&mut self) -> (ProcessId, u64) {
        self.processes += 1;
        (ProcessId(self.processes), self.rng.random())
    }

    /// Returns the random duration of a call, in milliseconds: mostly zero, seldom long.
    pub(crate) fn latency(&mut self) -> u64 {
        match self.rng.random_range(0..100) {
            0..60 => 0,
            60..97 => self.rng.random_range(1..4),
            _ => self.rng.random_range(5..60),
        }
    }

    /// Returns the number of a message in its schedule.
    pub(crate) fn name(&self, id: MessageId) -> u32 {
        self.names.get(&id).map_or(0, |(number, _)| *number)
    }

    pub(crate) fn defect(&self, id: MessageId) -> Defect {
        self.names.get(&id).map_or(Defect::None, |(_, defect)| *defect)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

/// Lets this many milliseconds pass.
pub(crate) async fn pass(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}
