//! Carries a plan out: faults inject, stay and are healed.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Failure;
use crate::clock;
use crate::faults::Fault;
use crate::plan::{Kind, PlannedFault};
use crate::stage::Stage;

/// The outcome of an injected fault.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Record {
    /// When it injected: see [`crate::clock`].
    pub struck_at: u64,
    /// When it was healed.
    pub healed_at: u64,
    /// Which fault.
    pub fault: &'static str,
    /// The target and the effect, or the reason why there was none.
    pub what: String,
    /// Whether it happened.
    pub happened: bool,
}

type Shared = Arc<Mutex<Box<dyn Fault>>>;

/// The faults of a storm.
pub struct FaultInjector {
    faults: Vec<(&'static str, Shared)>,
}

/// A inject takes no longer.
const STRIKE: Duration = Duration::from_secs(60);
/// Healing takes no longer: a server that has to recover, and another one that is not there until
/// it has.
const HEAL: Duration = Duration::from_secs(150);
/// Between two tries.
const HEAL_AGAIN: Duration = Duration::from_millis(500);

impl FaultInjector {
    /// These faults.
    #[must_use]
    pub fn new(faults: Vec<Box<dyn Fault>>) -> Self {
        let share = |fault: Box<dyn Fault>| (fault.name(), Arc::new(Mutex::new(fault)));
        Self { faults: faults.into_iter().map(share).collect() }
    }

    /// Describes the faults for a plan.
    pub async fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for (name, fault) in &self.faults {
            let fault = fault.lock().await;
            kinds.push(Kind { name, weight: fault.weight(), lasts: fault.lasts() });
        }
        kinds
    }

    /// Carries the plan out; calls `tell` for each inject. Returns when the storm is over and all
    /// is healed. What could not be healed in its time is healed then.
    ///
    /// # Errors
    /// Something could not be healed in the end either.
    pub async fn run(
        &self,
        stage: &Arc<Stage>,
        injected: &[PlannedFault],
        length: Duration,
        tell: impl Fn(&str),
    ) -> Result<Vec<Record>, Failure> {
        let begun = Instant::now();
        let mut running: JoinSet<Record> = JoinSet::new();
        let mut records = Vec::new();
        for inject in injected {
            sleep_until(begun + inject.at).await;
            let Some((_, fault)) = self.faults.iter().find(|(name, _)| *name == inject.fault) else {
                continue;
            };
            tell(inject.fault);
            running.spawn(one(Arc::clone(stage), Arc::clone(fault), inject.clone(), begun + length));
            while let Some(done) = running.try_join_next() {
                records.push(done?);
            }
        }
        sleep_until(begun + length).await;
        while let Some(done) = running.join_next().await {
            records.push(done?);
        }
        records.sort_by_key(|record| record.struck_at);
        for (_, fault) in &self.faults {
            heal(&mut **fault.lock().await, stage).await?;
        }
        Ok(records)
    }
}

async fn one(stage: Arc<Stage>, fault: Shared, inject: PlannedFault, end: Instant) -> Record {
    let mut fault = fault.lock().await;
    let mut rng = StdRng::seed_from_u64(inject.seed);
    let struck_at = clock::now();
    // On a slow machine the injected of one fault queue up; those left over would make the storm
    // longer without end.
    if Instant::now() >= end {
        let what = "its turn came after the storm".to_owned();
        return Record { struck_at, healed_at: struck_at, fault: inject.fault, what, happened: false };
    }
    let injected = timeout(STRIKE, fault.inject(&stage, &mut rng)).await;
    let (mut what, happened) = match injected {
        Ok(Ok(injected)) => (injected.to_string(), true),
        Ok(Err(error)) => (error.to_string(), false),
        Err(_) => (format!("it did not happen within {STRIKE:?}"), false),
    };
    sleep(inject.lasts.min(end.saturating_duration_since(Instant::now()))).await;
    if let Err(error) = heal(&mut **fault, &stage).await {
        what.push_str(&format!("; {error}"));
    }
    Record { struck_at, healed_at: clock::now(), fault: inject.fault, what, happened }
}

async fn heal(fault: &mut dyn Fault, stage: &Stage) -> Result<(), Failure> {
    let mut last = "no answer".to_owned();
    let healing = async {
        while let Err(error) = fault.heal(stage).await {
            last = error.to_string();
            sleep(HEAL_AGAIN).await;
        }
    };
    let healed = timeout(HEAL, healing).await;
    healed.map_err(|_| format!("{} could not be healed within {HEAL:?}: {last}", fault.name()).into())
}
