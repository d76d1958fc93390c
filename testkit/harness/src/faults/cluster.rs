//! An outage of a broker inside this process.

use async_trait::async_trait;
use rand::rngs::StdRng;

use super::{Fault, FaultKind, Injected, Reach, seconds};
use crate::Failure;

/// A fault that takes the whole cluster down, with all its connections, and brings it back.
#[derive(Debug)]
pub struct BrokerGone;

#[async_trait]
impl<S: Reach> Fault<S> for BrokerGone {
    fn kind(&self) -> FaultKind {
        FaultKind::new("broker-gone").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &S, _rng: &mut StdRng) -> Result<Injected, Failure> {
        stage.switch_cluster(false)?;
        Ok(Injected::new("all brokers", ""))
    }

    async fn heal(&mut self, stage: &S) -> Result<(), Failure> {
        stage.switch_cluster(true)
    }
}
