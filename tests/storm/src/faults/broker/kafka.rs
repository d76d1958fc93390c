//! Kafka: topics that accept only small messages.

use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// A fault that lowers `max.message.bytes` of a topic, and restores it.
#[derive(Debug, Default)]
pub struct Oversize {
    lowered: Option<String>,
}

/// Timeout of a request from the administrator.
const TIMEOUT: Duration = Duration::from_secs(10);

#[async_trait]
impl Fault<Stage> for Oversize {
    /// The fault is shorter than the time after which the relay declares a refused message dead.
    fn kind(&self) -> FaultKind {
        FaultKind::new("oversize").lasts(seconds(1)..=seconds(4))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let bytes = rng.random_range(300..=900_u32);
        self.lowered = Some(topic.clone());
        alter(&stage.broker.address, topic, Some(bytes)).await?;
        Ok(Injected::new(topic, format!("{bytes} bytes")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(topic) = &self.lowered {
            alter(&stage.broker.address, topic, None).await?;
            self.lowered = None;
        }
        Ok(())
    }
}

/// Sets or removes the limit of a topic. All other settings of the topic are lost. Removing the
/// limit restores the broker's default.
async fn alter(servers: &str, topic: &str, bytes: Option<u32>) -> Result<(), Failure> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", servers).create()?;
    let text = bytes.map(|bytes| bytes.to_string());
    let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic));
    if let Some(text) = &text {
        config = config.set("max.message.bytes", text);
    }
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT)).operation_timeout(Some(TIMEOUT));
    for altered in admin.alter_configs([&config], &options).await? {
        altered.map_err(|(_, code)| format!("max.message.bytes of {topic}: {code}"))?;
    }
    Ok(())
}
