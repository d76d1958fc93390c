//! Processes that end at a named place in their code.

use async_trait::async_trait;
use engine::crash_points::AFTER_CHUNK;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{Fault, FaultKind, Injected, millis};
use crate::Failure;
use crate::stage::{CRASH_POINTS, Role, Signal, Stage};

/// A fault that restarts a process, which then ends at one of its crash points.
#[derive(Debug)]
pub struct Crash {
    of_relays: Vec<&'static str>,
}

impl Crash {
    /// Creates the fault with the crash points that relays reach, with transactions or without.
    #[must_use]
    pub fn new(is_transactional: bool) -> Self {
        let mut of_relays = engine::crash_points::ALL.to_vec();
        if is_transactional {
            of_relays.extend(brokers::kafka::crash_points::ALL);
        }
        Self { of_relays }
    }
}

#[async_trait]
impl Fault<Stage> for Crash {
    fn kind(&self) -> FaultKind {
        FaultKind::new("crash-point").weight(25).lasts(millis(200)..=millis(1_500))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let roles = [Role::Producer, Role::Relay, Role::Consumer, Role::Worker];
        let role = *roles.choose(rng).ok_or("no role")?;
        let points: &[&str] = match role {
            Role::Producer => &outbox::crash_points::ALL,
            Role::Relay => &self.of_relays,
            Role::Consumer => &inbox::crash_points::ALL,
            Role::Worker => &saga::crash_points::ALL,
        };
        let names = stage.processes.of(role);
        let (name, &point) = (names.choose(rng).ok_or("no process")?, points.choose(rng).ok_or("no point")?);
        // Large messages, which have chunks, are rare.
        let times_max = if point == AFTER_CHUNK { 4 } else { 40 };
        let point = format!("{point}={}", rng.random_range(1..times_max));
        stage.processes.set_for_next_start(name, CRASH_POINTS, &point)?;
        stage.processes.signal(name, Signal::KILL)?;
        Ok(Injected::new(name, point))
    }
}
