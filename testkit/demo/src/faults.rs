//! Faults that the demo injects at points of progress from the plan.

use std::time::Duration;

use async_trait::async_trait;
use harness::Failure;
use harness::faults::tcp::{Kind, Tcp};
use harness::faults::{
    BrokerGone, Fault, FaultInjector, FaultKind, Faults, Injected, Kill, PlannedFault, Reach, Step, millis,
};
use harness::processes::{Processes, Role};
use proxy::Proxy;
use rand::rngs::StdRng;
use tokio::time::Instant;

use crate::error::DemoError;
use crate::plan::Plan;
use crate::progress::{Counts, Progress};
use crate::target::Outage;

/// Duration of an outage of the broker.
const AWAY: Duration = millis(800);

/// The part of a run that its faults can reach.
pub(crate) struct Stage<'a> {
    pub(crate) processes: &'a Processes,
    pub(crate) outage: &'a Outage,
    pub(crate) progress: &'a Progress,
}

/// Kills the leader and takes the broker down at the points of the plan, and reports each fault.
/// Returns when another relay leads after the last kill.
///
/// # Errors
/// [`DemoError::Unavailable`] if a fault could not be injected or healed.
pub(crate) async fn inject(stage: &Stage<'_>, plan: &Plan, limit: Duration) -> Result<(), DemoError> {
    let mut faults: Faults<Stage<'_>> = vec![Box::new(LeaderKill { epoch: -1 })];
    match stage.outage {
        Outage::Mock(_) => faults.push(Box::new(BrokerGone)),
        Outage::Proxy(_) => faults.push(Box::new(Tcp::new(Kind::Down))),
        Outage::Impossible(_) => {}
    }
    let points = [(&plan.kills, Duration::ZERO), (&plan.outages, AWAY)];
    let planned: Vec<_> = faults
        .iter()
        .zip(points)
        .flat_map(|(fault, (points, lasts))| {
            let (fault, seed) = (fault.kind().name, plan.seed);
            points.iter().map(move |at| PlannedFault { at: *at, fault, lasts, seed })
        })
        .collect();
    let reached = async |at: &u64| stage.progress.until(|counts| counts.published >= *at).await;
    let watch = |fault, step| stage.watch(plan, fault == Kill::NAME, step);
    let injector = FaultInjector::new(faults);
    let records = injector.run(stage, &planned, Instant::now() + limit, reached, watch).await;
    let records = records.map_err(DemoError::during("heal every fault"))?;
    match records.into_iter().find(|record| !record.happened) {
        Some(record) => Err(DemoError::during(format!("inject the fault {}", record.fault))(record.what)),
        None => Ok(()),
    }
}

impl Stage<'_> {
    /// Returns the relay that leads.
    fn leader(&self, counts: &Counts) -> Option<String> {
        let leads = |name: &String| {
            self.processes.pid(name).is_some_and(|pid| Some(pid.as_raw_nonzero().get()) == counts.leader)
        };
        self.processes.of(Role::Relay).into_iter().find(leads)
    }

    /// Counts faults, and reports them.
    fn watch(&self, plan: &Plan, is_kill: bool, step: Step) {
        let Self { progress, .. } = self;
        let Counts { relay_kills, outages, .. } = progress.counts();
        match (is_kill, step) {
            (true, Step::Inject) => {
                let (number, of) = (relay_kills + 1, plan.kills.len());
                progress.say(&format!("relay killed ({number} of {of}): another one stands by"));
                progress.update(|counts| counts.relay_kills += 1);
            }
            (true, Step::Healed) => progress.update(|counts| counts.relay_restarts += 1),
            (false, Step::Inject) => {
                progress.say(&format!("broker gone ({} of {})", outages + 1, plan.outages.len()));
            }
            (false, Step::Healed) => {
                progress.say("broker back");
                progress.update(|counts| counts.outages += 1);
            }
        }
    }
}

impl Reach for Stage<'_> {
    fn processes(&self) -> &Processes {
        self.processes
    }

    fn victims(&self) -> Vec<String> {
        self.leader(&self.progress.counts()).into_iter().collect()
    }

    fn wires(&self) -> Vec<(String, &Proxy)> {
        match self.outage {
            Outage::Proxy(proxy) => vec![(String::from("broker"), proxy)],
            Outage::Mock(_) | Outage::Impossible(_) => Vec::new(),
        }
    }

    fn switch_cluster(&self, up: bool) -> Result<(), Failure> {
        match self.outage {
            Outage::Mock(mock) => Ok(if up { mock.up() } else { mock.down() }?),
            Outage::Proxy(_) | Outage::Impossible(_) => Err("the broker does not run in this process".into()),
        }
    }
}

/// A fault that kills the leading relay. It is over when another relay leads.
struct LeaderKill {
    /// The epoch of the killed leader.
    epoch: i64,
}

#[async_trait]
impl<'a> Fault<Stage<'a>> for LeaderKill {
    fn kind(&self) -> FaultKind {
        FaultKind::new(Kill::NAME)
    }

    /// Waits until a running relay leads, because a relay that does not lead has nothing to lose.
    async fn ready(&mut self, stage: &Stage<'a>) {
        stage.progress.until(|counts| stage.leader(counts).is_some()).await;
    }

    async fn inject(&mut self, stage: &Stage<'a>, rng: &mut StdRng) -> Result<Injected, Failure> {
        self.epoch = stage.progress.counts().epoch;
        Kill.inject(stage, rng).await
    }

    async fn heal(&mut self, stage: &Stage<'a>) -> Result<(), Failure> {
        stage.progress.until(|counts| counts.epoch > self.epoch).await;
        Ok(())
    }
}
