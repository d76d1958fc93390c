//! One pipeline: from one outbox to one broker.

use engine::EngineOptions;
use message::Source;
use outbox_log::RelayName;

use super::{Broker, Database, Retention};

/// One pipeline: from one outbox to one broker.
#[derive(Debug, Clone)]
pub struct PipelineConfig {
    /// The relay's name, used for cursor, lease and metrics.
    pub name: RelayName,
    /// The CloudEvents source of its messages.
    pub source: Source,
    /// The location of the outbox.
    pub database: Database,
    /// How long published messages are kept.
    pub retention: Retention,
    /// How long operators' decisions are kept, unless messages are kept forever.
    pub audit_retention: Retention,
    /// The broker to which it publishes.
    pub broker: Broker,
    /// The behaviour of the pipeline.
    pub settings: EngineOptions,
}
