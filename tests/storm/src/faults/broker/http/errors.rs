//! The faults of HTTP endpoints.

use std::sync::Arc;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::gateway::{Gateway, Mood};
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// The faults that last longer than the timeout of a request, and than a lease.
const LONG: [&str; 2] = ["silent-endpoint", "hanging-endpoint"];

/// A fault that sets the mood of the gateway for a while. Of two simultaneous faults, the later one
/// counts. An endpoint that is gone (410) is not among them: nothing heals it but a restart.
#[derive(Debug)]
pub struct HttpErrors {
    name: &'static str,
    mood: fn(f64) -> Mood,
}

impl HttpErrors {
    /// Returns one fault of each kind.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let new = |name, mood| Self { name, mood };
        vec![
            new("failing-handlers", Mood::Failing as fn(f64) -> Mood),
            new("failing-endpoint", |_| Mood::Failing(1.0)),
            new("unavailable", Mood::Unavailable),
            new("retry-after", Mood::Later),
            new("early-answers", Mood::Early),
            new("denied", Mood::Denied),
            new("redirected", Mood::Redirected),
            new("cut-requests", Mood::Cut),
            new("lost-answers", Mood::Lost),
            new("silence", Mood::Silent),
            new("slow-endpoint", |_| Mood::Slow),
            new(LONG[0], |_| Mood::Silent(1.0)),
            new(LONG[1], |_| Mood::Hanging),
        ]
    }
}

#[async_trait]
impl Fault<Stage> for HttpErrors {
    fn kind(&self) -> FaultKind {
        let is_long = LONG.contains(&self.name);
        let lasts = if is_long { seconds(4)..=seconds(20) } else { seconds(2)..=seconds(8) };
        FaultKind::new(self.name).lasts(lasts)
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let percent = rng.random_range(10..=80_u8);
        gateway(stage)?.set((self.mood)(f64::from(percent) / 100.0));
        Ok(Injected::new("http", format!("{percent} %")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        gateway(stage)?.set(Mood::Fair);
        Ok(())
    }
}

fn gateway(stage: &Stage) -> Result<&Arc<Gateway>, Failure> {
    stage.broker.endpoint.as_ref().ok_or_else(|| "there is no endpoint".into())
}
