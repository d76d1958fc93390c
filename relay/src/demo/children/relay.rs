//! A relay in a process of its own: the engine as the `relay` binary runs it, and a counter of confirmations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use message::{Connector, PublishError, Publisher, Receipts, SizeLimit, Source};
use outbox::log::{LogOptions, RelayName};
use tokio_util::sync::CancellationToken;

use super::{receive_task, tell};
use crate::demo::error::DemoError;
use crate::demo::target::{BrokerSpec, DatabaseSpec};
use crate::engine::{EngineOptions, Pipeline, Role};

/// The hidden subcommand.
pub(crate) const RELAY_COMMAND: &str = "demo-relay";

/// Short, so that a takeover is quick.
const LEASE_TTL: Duration = Duration::from_millis(1_500);
/// The pause after a failed attempt to reach the broker.
const OUTAGE_DELAY_MAX: Duration = Duration::from_millis(500);
/// How long an orderly stop may take.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often the parent is told.
const TELL_INTERVAL: Duration = Duration::from_millis(5);

/// The task of a relay.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct RelayTask {
    pub(crate) database: DatabaseSpec,
    pub(crate) broker: BrokerSpec,
}

/// An event that a relay reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayEvent {
    /// Another relay holds the lease.
    Standby,
    /// It has the lease.
    Leading,
    /// So many messages have been confirmed to this process.
    Published(u64),
}

impl RelayEvent {
    fn line(self) -> String {
        match self {
            Self::Standby => String::from("standby"),
            Self::Leading => String::from("leading"),
            Self::Published(count) => format!("published {count}"),
        }
    }

    /// Reads a line of a relay; nothing when it says something else.
    pub(crate) fn read(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line == "standby" => Some(Self::Standby),
            None if line == "leading" => Some(Self::Leading),
            Some(("published", count)) => count.parse().ok().map(Self::Published),
            _ => None,
        }
    }
}

/// Runs a relay until standard input ends. For the hidden subcommand `demo-relay`.
///
/// # Errors
/// [`DemoError`] when the task cannot be read or used; trouble with database and broker is waited out.
pub async fn run_relay() -> Result<(), DemoError> {
    let (task, stop) = receive_task::<RelayTask>()?;
    let RelayTask { database, broker } = task;
    let usage = |error: &dyn std::fmt::Display| DemoError::Usage(error.to_string());
    let source = Source::new("/demo").map_err(|error| usage(&error))?;
    let name = RelayName::new("demo").map_err(|error| usage(&error))?;
    let options = LogOptions::default().schema(database.schema()?);
    let store = outbox::log::open(&database.url, source, options).map_err(|error| usage(&error))?;
    let confirmed = Arc::new(AtomicU64::new(0));
    let connector = Counting { inner: broker.connector()?, confirmed: Arc::clone(&confirmed) };
    let settings = EngineOptions {
        lease_ttl: LEASE_TTL,
        outage_delay_max: OUTAGE_DELAY_MAX,
        shutdown_grace: SHUTDOWN_GRACE,
        size_limit: SizeLimit::PORTABLE,
        ..EngineOptions::default()
    };
    let pipeline = Pipeline::new(name, store, Arc::new(connector), settings);
    let telling = tokio::spawn(tell_progress(pipeline.clone(), confirmed, stop.clone()));
    pipeline.run(stop).await;
    telling.await.map_err(DemoError::during("tell the progress of a relay"))
}

async fn tell_progress(pipeline: Pipeline, confirmed: Arc<AtomicU64>, stop: CancellationToken) {
    let mut status = pipeline.status();
    let (mut told_role, mut told_count) = (None, 0);
    while !stop.is_cancelled() {
        let role = match &status.borrow_and_update().role {
            Role::Standby { .. } => Some(RelayEvent::Standby),
            Role::Leading { .. } => Some(RelayEvent::Leading),
            _ => None,
        };
        if role != told_role {
            role.iter().for_each(|role| tell(&role.line()));
            told_role = role;
        }
        let count = confirmed.load(Ordering::Relaxed);
        if count != told_count {
            tell(&RelayEvent::Published(count).line());
            told_count = count;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(TELL_INTERVAL) => {}
        }
    }
}

/// A connector that counts confirmations on their way to the engine.
struct Counting {
    inner: Arc<dyn Connector>,
    confirmed: Arc<AtomicU64>,
}

#[async_trait]
impl Connector for Counting {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let (counted, mut incoming) = Receipts::channel();
        let publisher = self.inner.connect(counted).await?;
        let confirmed = Arc::clone(&self.confirmed);
        tokio::spawn(async move {
            while let Some(receipt) = incoming.recv().await {
                if receipt.outcome.is_ok() {
                    confirmed.fetch_add(1, Ordering::Relaxed);
                }
                receipts.send(receipt.ticket, receipt.outcome);
            }
        });
        Ok(publisher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_relay_tells_is_understood() {
        for event in [RelayEvent::Standby, RelayEvent::Leading, RelayEvent::Published(12)] {
            assert_eq!(RelayEvent::read(&event.line()), Some(event));
        }
        assert_eq!(RelayEvent::read("published x"), None);
        assert_eq!(RelayEvent::read(""), None);
    }
}
