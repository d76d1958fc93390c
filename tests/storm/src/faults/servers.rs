//! Servers that stop and come back.

use async_trait::async_trait;
use rand::rngs::StdRng;

use super::{Fault, FaultKind, Injected, millis, seconds};
use crate::Failure;
use crate::pair::{BrokerKind, DatabaseKind, Pair};
use crate::stage::{Service, Stage};

/// The way in which a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Immediately, and nothing is flushed: SIGKILL. PostgreSQL stops in mode `immediate`, and
    /// recovers.
    Crash,
    /// Orderly.
    Restart,
}

/// A fault that stops the server of the database or the broker, and finally starts it again.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    service: Service,
    manner: Manner,
    stopped: bool,
}

impl Server {
    /// Returns the servers of this pair that can be stopped.
    #[must_use]
    pub fn all(pair: Pair) -> Vec<Self> {
        let new = |name, service, manner| Self { name, service, manner, stopped: false };
        let mut all = Vec::new();
        if pair.database == DatabaseKind::Postgres {
            all.push(new("database-crash", Service::Postgres, Manner::Crash));
            all.push(new("database-restart", Service::Postgres, Manner::Restart));
        }
        let broker = match pair.broker {
            BrokerKind::Kafka => Some(Service::Kafka),
            BrokerKind::Rabbitmq => Some(Service::Rabbitmq),
            BrokerKind::Sqs | BrokerKind::SqsFifo => Some(Service::Sqs),
            BrokerKind::MockKafka | BrokerKind::Http => None,
        };
        if let Some(broker) = broker {
            all.push(new("broker-crash", broker, Manner::Crash));
            all.push(new("broker-restart", broker, Manner::Restart));
        }
        all
    }
}

#[async_trait]
impl Fault<Stage> for Server {
    fn kind(&self) -> FaultKind {
        let weight = if self.manner == Manner::Crash { 6 } else { 3 };
        FaultKind::new(self.name).weight(weight).lasts(millis(200)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Injected, Failure> {
        self.stopped = true;
        stage.services.stop(self.service, self.manner == Manner::Crash).await?;
        Ok(Injected::new(self.service.as_str(), ""))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if self.stopped {
            stage.services.start(self.service).await?;
            self.stopped = false;
        }
        Ok(())
    }
}
