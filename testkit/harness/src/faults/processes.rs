//! Processes that end without warning, or are suspended.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{Fault, FaultKind, Injected, Reach, seconds};
use crate::Failure;
use crate::processes::Signal;

/// A fault that kills a random process with SIGKILL. [`Processes`](crate::processes::Processes)
/// restarts the process.
#[derive(Debug)]
pub struct Kill;

impl Kill {
    /// The name of the fault.
    pub const NAME: &str = "kill";
}

#[async_trait]
impl<S: Reach> Fault<S> for Kill {
    fn kind(&self) -> FaultKind {
        FaultKind::new(Self::NAME)
    }

    async fn inject(&mut self, stage: &S, rng: &mut StdRng) -> Result<Injected, Failure> {
        let name = victim(stage, rng)?;
        stage.processes().signal(&name, Signal::KILL)?;
        Ok(Injected::new(name, ""))
    }
}

/// A fault that suspends a random process with SIGSTOP, for longer than its lease, and finally
/// resumes it with SIGCONT.
#[derive(Debug, Default)]
pub struct Pause {
    paused: Option<String>,
}

#[async_trait]
impl<S: Reach> Fault<S> for Pause {
    fn kind(&self) -> FaultKind {
        FaultKind::new("pause").lasts(seconds(4)..=seconds(25))
    }

    async fn inject(&mut self, stage: &S, rng: &mut StdRng) -> Result<Injected, Failure> {
        let name = self.paused.insert(victim(stage, rng)?);
        stage.processes().signal(name, Signal::STOP)?;
        Ok(Injected::new(name.as_str(), ""))
    }

    async fn heal(&mut self, stage: &S) -> Result<(), Failure> {
        if let Some(name) = &self.paused {
            stage.processes().signal(name, Signal::CONT)?;
        }
        self.paused = None;
        Ok(())
    }
}

fn victim(stage: &impl Reach, rng: &mut StdRng) -> Result<String, Failure> {
    Ok(stage.victims().choose(rng).ok_or("there is no process")?.clone())
}
