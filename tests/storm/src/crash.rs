//! Processes that end at a named place of their code.

use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use relay::crash_points::AFTER_CHUNK;

use crate::Failure;
use crate::faults::{Fault, Injected};
use crate::stage::{CRASH_POINTS, Role, Signal, Stage};

/// A process is started again, and ends at a crash point of its own.
#[derive(Debug, Default)]
pub struct Crash;

#[async_trait]
impl Fault for Crash {
    fn name(&self) -> &'static str {
        "crash-point"
    }

    fn weight(&self) -> u32 {
        25
    }

    fn lasts(&self) -> RangeInclusive<Duration> {
        Duration::from_millis(200)..=Duration::from_millis(1_500)
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let roles = [Role::Producer, Role::Relay, Role::Consumer];
        let role = *roles.choose(rng).ok_or("no role")?;
        let points: &[&str] = match role {
            Role::Producer => &outbox::crash_points::ALL,
            Role::Relay => &relay::crash_points::ALL,
            Role::Consumer => &inbox::crash_points::ALL,
        };
        let names = stage.processes.of(role);
        let (name, &point) = (names.choose(rng).ok_or("no process")?, points.choose(rng).ok_or("no point")?);
        // Few messages are large.
        let times_max = if point == AFTER_CHUNK { 4 } else { 40 };
        let point = format!("{point}={}", rng.random_range(1..times_max));
        stage.processes.set_for_next_start(name, CRASH_POINTS, &point)?;
        stage.processes.signal(name, Signal::KILL)?;
        Ok(Injected::new(name, point))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        Ok(())
    }
}
