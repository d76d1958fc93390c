//! Runs one schedule to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use checker::{Operation, Promise, Violation};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::breakage::Breakage;
use crate::broker::serve;
use crate::chaos::harm;
use crate::fault::Decision;
use crate::fleet::Fleet;
use crate::history::history;
use crate::producers::produce;
use crate::schedule::{HEALED_AT, Schedule};
use crate::world::{Finding, State, World, pass};

/// Maximum time until everything is quiet after healing, in simulated time. The longest pauses
/// between attempts are 10 s.
pub const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// Maximum time of an orderly stop, in simulated time.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// A way in which a schedule failed, which shrinking must preserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The checker found it.
    Violation(Violation),
    /// A check during the run found it.
    Promise(Promise),
    /// A relay exceeded the bounds of its memory.
    Memory,
    /// It did not come to rest.
    NotQuiet,
    /// It did not stop on request.
    NotStopped,
}

/// The outcome of a schedule.
#[derive(Debug)]
pub struct Outcome {
    /// The problems in words; empty if every promise held.
    pub failures: Vec<(Failure, String)>,
    /// The hash of the course of events.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Simulated time.
    pub lasted: Duration,
    /// The course of events as text, if it was requested.
    pub lines: Vec<String>,
    /// The confirmations that relays got: milliseconds after the start, and the number of the
    /// message.
    pub confirmed: Vec<(u64, u32)>,
    /// Number of sends of each message to the broker, by its number.
    pub sent: BTreeMap<u32, u32>,
    /// The number of held entries after each checkpoint, with the milliseconds after the start.
    pub held: Vec<(u64, usize)>,
}

impl Outcome {
    /// Returns the first failure.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failures.first().map(|(failure, _)| *failure)
    }
}

/// Runs a schedule, with one part of its environment broken if `breakage` is given.
///
/// # Panics
/// If no runtime can be made because the machine is out of memory or file descriptors.
#[must_use]
#[expect(clippy::expect_used, reason = "a runtime without I/O needs nothing that could be missing")]
pub fn run(schedule: &Schedule, breakage: Option<Breakage>, is_traced: bool) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(simulate(schedule, breakage, is_traced))
}

async fn simulate(schedule: &Schedule, breakage: Option<Breakage>, is_traced: bool) -> Outcome {
    let world = World::new(schedule, breakage, is_traced);
    let broker = tokio::spawn(serve(Arc::clone(&world)));
    let producers = tokio::spawn(produce(Arc::clone(&world), schedule.clone()));
    let fleet = Fleet::start(&world, schedule);
    let pauses = harm(&world, schedule, &fleet).await;
    let start = world.lock().start;
    tokio::time::sleep_until(start + Duration::from_millis(HEALED_AT.into())).await;
    let operations = producers.await.unwrap_or_default();

    let mut failures = Vec::new();
    let is_quiet = heal(&world, &fleet).await;
    if !is_quiet {
        failures.push((Failure::NotQuiet, not_quiet(&world)));
    }
    drop(pauses);
    if !fleet.stop(STOPPED_WITHIN).await {
        failures.push((Failure::NotStopped, format!("not everything stopped within {STOPPED_WITHIN:?}")));
    }
    broker.abort();
    // Aborted tasks end at their next poll.
    pass(1).await;
    check(&world, operations, is_quiet, failures, start)
}

/// Ends all faults, and waits until nothing is left to do: first without the missing topic, then
/// with it. Returns whether that happened in time.
async fn heal(world: &Arc<World>, fleet: &Fleet) -> bool {
    world.lock().heal();
    fleet.resume_all();
    if !comes(world, |state| state.outbox.is_quiet_but_for_missing()).await {
        return false;
    }
    world.lock().create_missing_topic();
    comes(world, |state| state.outbox.is_quiet() && state.broker.is_quiet()).await
}

/// Waits for a condition, while an operator edits dead entries. Returns whether it was met in time.
async fn comes(world: &World, is_so: impl Fn(&State) -> bool) -> bool {
    let deadline = Instant::now() + QUIET_WITHIN;
    while Instant::now() < deadline {
        {
            let mut state = world.lock();
            if is_so(&state) {
                return true;
            }
            state.decide(Decision::Edit);
        }
        pass(20).await;
    }
    false
}

fn not_quiet(world: &World) -> String {
    let state = world.lock();
    let aside: Vec<_> = state
        .outbox
        .exceptions
        .iter()
        .map(|(id, aside)| {
            let name = state.outbox.rows.get(&id.0).map_or(0, |row| state.name(row.message.id));
            format!("m{name} {}", aside.parked.state)
        })
        .collect();
    format!(
        "not quiet {QUIET_WITHIN:?} after healing: cursor {:?} of {} commits, aside {aside:?}, {} deliveries unsettled",
        state.outbox.relay.cursor,
        state.outbox.commits,
        state.broker.group.unsettled_len(),
    )
}

fn check(
    world: &World,
    operations: Vec<Operation>,
    is_quiet: bool,
    mut failures: Vec<(Failure, String)>,
    start: Instant,
) -> Outcome {
    let mut state = world.lock();
    let history = history(&state, operations, is_quiet);
    let verdict = checker::Verdict::of(&history);
    let seen = state.findings.iter().map(|Finding { failure, text }| (*failure, text.clone()));
    failures.extend(seen);
    failures
        .extend(verdict.breaches().map(|breach| (Failure::Violation(breach.violation), breach.to_string())));
    let trace = std::mem::take(&mut state.trace);
    Outcome {
        failures,
        hash: trace.hash(),
        events: trace.len(),
        lasted: start.elapsed(),
        lines: trace.into_lines(),
        confirmed: std::mem::take(&mut state.broker.confirmed),
        sent: std::mem::take(&mut state.broker.sent),
        held: std::mem::take(&mut state.held),
    }
}
