//! RabbitMQ: full queues, unroutable messages, missing confirms.

use std::num::NonZeroU32;

use async_trait::async_trait;
use brokers::rabbitmq::{Admin, Config, QueueOptions};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::{Broker, Stage};

/// A fault that adds a small queue to a topic (`overflow=reject-publish`). Once it is full, the
/// broker refuses every message to that topic with a nack, although the other queues got it.
/// Healing removes the queue.
#[derive(Debug, Default)]
pub struct Full {
    declared: Option<String>,
}

#[async_trait]
impl Fault<Stage> for Full {
    fn kind(&self) -> FaultKind {
        FaultKind::new("queue-full").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let exchange = exchange(&stage.broker)?;
        // The queue is bound to the inner exchange, so that the other queues lose the binding of a
        // topic together with it. If this queue alone were bound, it would receive messages that no
        // consumer reads. The broker would rightly confirm these, and they would be lost with the
        // queue.
        let inner = inner(&stage.broker)?;
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let messages_max = rng.random_range(1..=20_u32);
        let queue = format!("{exchange}-full-{:08x}", rng.random::<u32>());
        let options = QueueOptions::default().messages_max(NonZeroU32::new(messages_max));
        let admin = connect(&stage.broker).await?;
        self.declared = Some(queue.clone());
        admin.declare_queue(&queue, options).await?;
        admin.bind(&queue, inner, topic).await?;
        admin.close().await;
        Ok(Injected::new(topic, format!("nack after {messages_max} messages")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(queue) = &self.declared {
            let admin = connect(&stage.broker).await?;
            admin.delete_queue(queue).await?;
            admin.close().await;
            self.declared = None;
        }
        Ok(())
    }
}

/// A fault that removes the binding of a topic, for all its queues at once, and restores it.
/// Meanwhile messages come back as unroutable.
#[derive(Debug, Default)]
pub struct Unroutable {
    unbound: Option<String>,
}

#[async_trait]
impl Fault<Stage> for Unroutable {
    fn kind(&self) -> FaultKind {
        FaultKind::new("unroutable").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (exchange, inner) = (exchange(&stage.broker)?, inner(&stage.broker)?);
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let admin = connect(&stage.broker).await?;
        self.unbound = Some(topic.clone());
        admin.unbind_exchange(inner, exchange, topic).await?;
        admin.close().await;
        Ok(Injected::new(topic, ""))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(topic) = &self.unbound {
            let admin = connect(&stage.broker).await?;
            admin.bind_exchange(inner(&stage.broker)?, exchange(&stage.broker)?, topic).await?;
            admin.close().await;
            self.unbound = None;
        }
        Ok(())
    }
}

/// A fault that withholds the confirms of messages to the topic that consumers read. The broker
/// stores the messages. The fault lasts longer than a lease, and longer than a window waits for
/// confirms. Other topics get their confirms, and heartbeats pass.
#[derive(Debug)]
pub struct SilentQueue;

#[async_trait]
impl Fault<Stage> for SilentQueue {
    fn kind(&self) -> FaultKind {
        FaultKind::new("silent-queue").lasts(seconds(4)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Injected, Failure> {
        let confirms = stage.broker.confirms.as_ref().ok_or("nothing keeps confirms back")?;
        let topic = &stage.broker.topics.first().ok_or("there is no topic")?.name;
        confirms.silence(true);
        Ok(Injected::new(topic, "confirms are kept back"))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(confirms) = &stage.broker.confirms {
            confirms.silence(false);
        }
        Ok(())
    }
}

async fn connect(broker: &Broker) -> Result<Admin, Failure> {
    Ok(Admin::connect(&Config::new(&broker.address)).await?)
}

fn exchange(broker: &Broker) -> Result<&str, Failure> {
    broker.exchange.as_deref().ok_or_else(|| "there is no exchange".into())
}

fn inner(broker: &Broker) -> Result<&str, Failure> {
    broker.inner_exchange.as_deref().ok_or_else(|| "there is no inner exchange".into())
}
