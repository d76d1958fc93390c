//! The faults of SQS.

use std::sync::Arc;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::gateway::{Gateway, Mood};
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// The fault that lasts longer than the timeout of a request, and than a lease.
const SILENT_QUEUE: &str = "silent-queue";

/// A fault that sets the mood of the gateway for a while. Of two simultaneous faults, the later one
/// counts.
#[derive(Debug)]
pub struct SqsErrors {
    name: &'static str,
    mood: fn(f64) -> Mood,
}

impl SqsErrors {
    /// Returns one fault of each kind.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let new = |name, mood| Self { name, mood };
        vec![
            new("partial-batch", Mood::Partial as fn(f64) -> Mood),
            new("partial-batch-done", Mood::PartialDone),
            new("server-errors", Mood::Errors),
            new("throttling", Mood::Throttled),
            new("silence", Mood::Silent),
            new(SILENT_QUEUE, |_| Mood::SilentSends),
        ]
    }
}

#[async_trait]
impl Fault<Stage> for SqsErrors {
    fn kind(&self) -> FaultKind {
        let is_long = self.name == SILENT_QUEUE;
        let lasts = if is_long { seconds(4)..=seconds(20) } else { seconds(2)..=seconds(8) };
        FaultKind::new(self.name).lasts(lasts)
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let percent = rng.random_range(10..=80_u8);
        gateway(stage)?.set((self.mood)(f64::from(percent) / 100.0));
        Ok(Injected::new("sqs", format!("{percent} %")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        gateway(stage)?.set(Mood::Fair);
        Ok(())
    }
}

fn gateway(stage: &Stage) -> Result<&Arc<Gateway>, Failure> {
    stage.broker.gateway.as_ref().ok_or_else(|| "there is no gateway".into())
}
