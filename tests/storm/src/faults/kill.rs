//! A process ends without warning; the storm starts it again.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::{Fault, Injected};
use crate::Failure;
use crate::stage::{Signal, Stage};

/// SIGKILL for a process at random.
#[derive(Debug)]
pub struct Kill;

#[async_trait]
impl Fault for Kill {
    fn name(&self) -> &'static str {
        "kill"
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let names = stage.processes.names();
        let name = names.choose(rng).ok_or("there is no process")?;
        stage.processes.signal(name, Signal::KILL)?;
        Ok(Injected::new(name, ""))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        Ok(())
    }
}
