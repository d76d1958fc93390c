//! A relay in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{EngineOptions, Pipeline, Publishing};
use message::Source;
use outbox_log::{LogOptions, LogStore, RelayName};
use tokio_util::sync::CancellationToken;

use super::{Database, Published};
use crate::Failure;

/// Time without progress after which a turn has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The name of every relay here.
pub(crate) const RELAY: &str = "bench";

/// Opens the log of a database.
pub(crate) fn log(database: &Database) -> Result<Arc<dyn LogStore>, Failure> {
    Ok(outbox_log::open(&database.url, Source::new("/bench")?, LogOptions::default())?)
}

/// Creates a relay for a database in this process, without running it.
pub(crate) fn pipeline(
    database: &Database,
    publishing: impl Into<Publishing>,
    settings: EngineOptions,
) -> Result<Pipeline, Failure> {
    Ok(Pipeline::new(RelayName::new(RELAY)?, log(database)?, publishing, settings))
}

/// The figures of a drained backlog.
pub(crate) struct Drained {
    /// Time from a cold start to the last confirmation.
    pub(crate) took: Duration,
    /// Time from a cold start to the first confirmations.
    pub(crate) start: Duration,
    /// Messages per second after the first confirmations.
    pub(crate) rate: f64,
}

/// Relays this number of messages. Returns the time from a cold start to the last confirmation.
pub(crate) async fn drain(
    database: &Database,
    publishing: impl Into<Publishing>,
    settings: EngineOptions,
    messages: u64,
    published: &Published,
) -> Result<Duration, Failure> {
    Ok(drain_in_steps(database, publishing, settings, messages, published).await?.took)
}

/// Relays like [`drain`], and returns the figures of the start and of the rest separately.
pub(crate) async fn drain_in_steps(
    database: &Database,
    publishing: impl Into<Publishing>,
    settings: EngineOptions,
    messages: u64,
    published: &Published,
) -> Result<Drained, Failure> {
    let pipeline = pipeline(database, publishing, settings)?;
    let stop = CancellationToken::new();
    let before = published.count();
    let started = Instant::now();
    let running = tokio::spawn(pipeline.run(stop.clone()));
    let reached = async {
        published.reach(before + 1, PATIENCE).await?;
        let (start, first) = (started.elapsed(), published.count());
        published.reach(before + messages, PATIENCE).await?;
        let took = started.elapsed();
        let rate = (before + messages).saturating_sub(first) as f64 / (took - start).as_secs_f64();
        Ok(Drained { took, start, rate })
    };
    let reached = reached.await;
    stop.cancel();
    running.await?;
    reached
}
