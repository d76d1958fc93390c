//! A relay inside a service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use brokers::memory::{self, Broker};
use message::{
    Capabilities, Connector, MaxInFlightPerKey, PublishError, Publisher, Receipts, SizeLimit, Submission,
    Topic,
};
use outbox_toolkit::{Relay, RelayRole, RelayStatus};

use crate::outbox::retention::messages;
use crate::outbox::support::{Database, TestDialect};

tests::cases! { "outbox/in_service/{on}/{case}":
    every { a_bug_ends_no_relay }
}

/// A connector with a bug: its first session makes the relay panic.
struct Buggy {
    connector: memory::Connector,
    sessions: AtomicU32,
}

#[async_trait]
impl Connector for Buggy {
    fn destination(&self) -> &str {
        self.connector.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let publisher = self.connector.connect(receipts).await?;
        let is_first = self.sessions.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(if is_first { Box::new(Panics) } else { publisher })
    }
}

struct Panics;

#[async_trait]
impl Publisher for Panics {
    fn profile(&self) -> Capabilities {
        panic!("a bug")
    }

    async fn submit(&mut self, _: Vec<Submission>) {}

    async fn close(self: Box<Self>, _: Duration) {}
}

/// Goal: a bug does not end publishing in silence. Oracle: the messages, which a later session
/// publishes; the states in between; the end, once the service asks for it.
async fn a_bug_ends_no_relay<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(3)).await;
    let broker = Broker::new();
    let connector = broker.connector(MaxInFlightPerKey::Pipelined);
    let connector = Buggy { connector, sessions: AtomicU32::new(0) };
    let builder = Relay::builder(db.relay_url().as_str()).connector(connector, SizeLimit::PORTABLE);
    let relay = builder.build().unwrap();
    let mut health = relay.health();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(relay.run(async { _ = stopped.await }));
    let topic = Topic::new("orders").unwrap();
    let mut seen: Vec<RelayStatus> = Vec::new();
    while broker.log(&topic).len() < 3 {
        match tokio::time::timeout(Duration::from_millis(100), health.changed()).await {
            Ok(Some(status)) => seen.push(status),
            Ok(None) => panic!("the relay has ended: {seen:?}"),
            Err(_) => assert!(!running.is_finished(), "the relay has ended: {seen:?}"),
        }
    }
    let is_told = |status: &&RelayStatus| {
        status.faults == 1
            && matches!(&status.role, RelayRole::Waiting { reason, .. } if reason.contains("internal error"))
    };
    assert!(seen.iter().any(|status| is_told(&status)), "{seen:?}");
    stop.send(()).unwrap();
    running.await.unwrap();
    assert_eq!(health.status().role, RelayRole::Stopped);
}
