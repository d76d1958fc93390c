//! A process stands still for longer than its lease, and then goes on as if nothing had been.

use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{Fault, Injected, seconds};
use crate::Failure;
use crate::stage::{Signal, Stage};

/// SIGSTOP for a process at random, SIGCONT in the end.
#[derive(Debug, Default)]
pub struct Pause {
    paused: Option<String>,
}

#[async_trait]
impl Fault for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn lasts(&self) -> RangeInclusive<Duration> {
        seconds(4)..=seconds(25)
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let names = stage.processes.names();
        let name = names.choose(rng).ok_or("there is no process")?;
        self.paused = Some(name.clone());
        stage.processes.signal(name, Signal::STOP)?;
        Ok(Injected::new(name, ""))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(name) = &self.paused else { return Ok(()) };
        stage.processes.signal(name, Signal::CONT)?;
        self.paused = None;
        Ok(())
    }
}
