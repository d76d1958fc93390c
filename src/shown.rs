//! The settings of a relay, as its page shows them.

use std::time::Duration;

use engine::EngineOptions;
use engine::maintenance::KEEP_DECISIONS_DEFAULT;
use message::Source;
use operate::{Broker, Database, PipelineConfig, Retention};
use outbox_log::RelayName;

/// Returns the page's data about a relay, with the default settings of the engine.
pub(crate) fn shown(
    name: &RelayName,
    source: &Source,
    database: Database,
    broker: Broker,
    keep: Option<Duration>,
) -> PipelineConfig {
    let decisions = keep.map(|_| KEEP_DECISIONS_DEFAULT);
    PipelineConfig {
        name: name.clone(),
        source: source.clone(),
        database,
        retention: keep.map_or(Retention::Off, Retention::For),
        audit_retention: decisions.map_or(Retention::Off, Retention::For),
        broker,
        settings: EngineOptions::default(),
    }
}
