//! Carries out a schedule: injects faults, waits, and heals them.

use std::time::Duration;

use futures_util::future::join_all;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Fault, Faults, PlannedFault};
use crate::{Failure, clock};

/// The outcome of a planned fault.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Record {
    /// The time at which the fault was injected; see [`crate::clock`].
    pub struck_at: u64,
    /// The time at which the fault was healed, on the same clock.
    pub healed_at: u64,
    /// The fault.
    pub fault: &'static str,
    /// The target and the effect, or the reason why there was no effect.
    pub what: String,
    /// Whether the fault happened.
    pub happened: bool,
}

/// The progress of a fault, for a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The fault is being injected.
    Inject,
    /// The fault was injected and has been healed.
    Healed,
}

type Shared<S> = Mutex<Box<dyn Fault<S>>>;

/// The faults of a run.
pub struct FaultInjector<S> {
    faults: Vec<(&'static str, Shared<S>)>,
}

/// Timeout of an injection.
const INJECT: Duration = Duration::from_secs(60);
/// Timeout of healing, long enough for a server that recovers only after another server has.
const HEAL: Duration = Duration::from_secs(150);
/// Pause between two attempts to heal.
const HEAL_AGAIN: Duration = Duration::from_millis(500);

impl<S: Sync> FaultInjector<S> {
    /// Creates an injector for these faults.
    #[must_use]
    pub fn new(faults: Faults<S>) -> Self {
        Self { faults: faults.into_iter().map(|fault| (fault.kind().name, Mutex::new(fault))).collect() }
    }

    /// Injects each planned fault once `reached` returns, and reports it to `watch`. At `end` every
    /// fault is healed, and no other fault begins. Returns when all faults are over. A fault that
    /// could not be healed in its time is healed at `end`.
    ///
    /// # Errors
    /// A fault could not be healed at the end either.
    pub async fn run<M>(
        &self,
        stage: &S,
        planned: &[PlannedFault<M>],
        end: Instant,
        reached: impl AsyncFn(&M),
        watch: impl Fn(&'static str, Step),
    ) -> Result<Vec<Record>, Failure> {
        let known = planned.iter().filter_map(|planned| {
            let (_, fault) = self.faults.iter().find(|(name, _)| *name == planned.fault)?;
            Some((planned, fault))
        });
        let (reached, watch) = (&reached, &watch);
        let all = known.map(async |(planned, fault)| {
            reached(&planned.at).await;
            one(stage, &mut **fault.lock().await, planned, end, watch).await
        });
        let mut records = join_all(all).await;
        records.sort_by_key(|record| record.struck_at);
        for (_, fault) in &self.faults {
            heal(&mut **fault.lock().await, stage).await?;
        }
        Ok(records)
    }
}

async fn one<S: Sync, M>(
    stage: &S,
    fault: &mut dyn Fault<S>,
    planned: &PlannedFault<M>,
    end: Instant,
    watch: &impl Fn(&'static str, Step),
) -> Record {
    fault.ready(stage).await;
    let record = |struck_at, what, happened| Record {
        struck_at,
        healed_at: clock::now(),
        fault: planned.fault,
        what,
        happened,
    };
    let struck_at = clock::now();
    // On a slow machine the injections of one fault queue up, and the remaining ones would extend
    // the run without limit.
    if Instant::now() >= end {
        return record(struck_at, "it was due after the end".to_owned(), false);
    }
    watch(planned.fault, Step::Inject);
    let mut rng = StdRng::seed_from_u64(planned.seed);
    let (mut what, happened) = match timeout(INJECT, fault.inject(stage, &mut rng)).await {
        Ok(Ok(injected)) => (injected.to_string(), true),
        Ok(Err(error)) => (error.to_string(), false),
        Err(_) => (format!("it did not happen within {INJECT:?}"), false),
    };
    sleep(planned.lasts.min(end.saturating_duration_since(Instant::now()))).await;
    match heal(fault, stage).await {
        Ok(()) if happened => watch(planned.fault, Step::Healed),
        Ok(()) => {}
        Err(error) => what.push_str(&format!("; {error}")),
    }
    record(struck_at, what, happened)
}

async fn heal<S: Sync>(fault: &mut dyn Fault<S>, stage: &S) -> Result<(), Failure> {
    let mut last = "no answer".to_owned();
    let healing = async {
        while let Err(error) = fault.heal(stage).await {
            last = error.to_string();
            sleep(HEAL_AGAIN).await;
        }
    };
    let healed = timeout(HEAL, healing).await;
    healed.map_err(|_| format!("{} could not be healed within {HEAL:?}: {last}", fault.kind().name).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{FaultKind, Injected, millis, seconds};

    type Seen = std::sync::Mutex<Vec<&'static str>>;

    /// A fault that fails if its name requests it.
    struct Named(&'static str);

    #[async_trait::async_trait]
    impl Fault<Seen> for Named {
        fn kind(&self) -> FaultKind {
            FaultKind::new(self.0)
        }

        async fn inject(&mut self, seen: &Seen, _rng: &mut StdRng) -> Result<Injected, Failure> {
            seen.lock().unwrap().push(self.0);
            if self.0 == "fails" { Err("no way".into()) } else { Ok(Injected::new("it", "")) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_planned_fault_has_its_turn_and_its_record() {
        let injector = FaultInjector::new(vec![Box::new(Named("fails")), Box::new(Named("works"))]);
        let planned = [(2, "works"), (1, "fails"), (3, "unknown"), (9, "works")];
        let planned = planned.map(|(at, fault)| PlannedFault { at, fault, lasts: seconds(0), seed: 7 });
        let (seen, end) = (Seen::default(), Instant::now() + millis(250));
        let reached = async |at: &u64| sleep(millis(50) * u32::try_from(*at).unwrap()).await;
        let records = injector.run(&seen, &planned, end, reached, |_, _| {}).await.unwrap();
        let told: Vec<_> = records.iter().map(|it| (it.fault, it.happened, it.what.as_str())).collect();
        let late = "it was due after the end";
        assert_eq!(told, [("fails", false, "no way"), ("works", true, "it"), ("works", false, late)]);
        assert_eq!(*seen.lock().unwrap(), ["fails", "works"]);
    }
}
