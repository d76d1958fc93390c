//! One key with far more messages than the relay's memory takes, beside others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use engine::{EngineOptions, Pipeline};
use message::{
    Capabilities, Connector, MaxInFlightPerKey, Message, MessageId, PublishError, Publisher, Receipts,
    Submission,
};
use outbox::NewMessage;
use outbox_log::LogOptions;
use tokio_util::sync::CancellationToken;

use crate::outbox::support::{Database, TestDialect, relay, source};

tests::cases! { "outbox/busy_key/{on}/{case}":
    every { a_burst_of_one_key_delays_no_other_key }
}

/// The key with the burst.
const BUSY: &str = "busy";

/// Messages of the burst before the others, and as many behind them.
const BURST: usize = 3_000;

/// Other keys, with one message each.
const OTHERS: usize = 200;

/// A broker that takes one message of a key at a time, and answers slowly about the busy key.
#[derive(Clone, Default)]
struct SlowForOne {
    messages: Arc<Mutex<Messages>>,
    is_fast: Arc<AtomicBool>,
}

/// The messages that have arrived, without copies, in the order of their first arrivals.
#[derive(Default)]
struct Messages {
    ids: HashSet<MessageId>,
    busy: Vec<usize>,
    others: usize,
}

impl Messages {
    fn arrive(&mut self, message: &Message) {
        let is_new = self.ids.insert(message.id);
        if is_new && is_busy(message) {
            self.busy.push(serde_json::from_slice(&message.payload).unwrap());
        } else if is_new {
            self.others += 1;
        }
    }
}

struct Session {
    broker: SlowForOne,
    receipts: Arc<Receipts>,
}

#[async_trait]
impl Connector for SlowForOne {
    fn destination(&self) -> &'static str {
        "a broker"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        Ok(Box::new(Session { broker: self.clone(), receipts: Arc::new(receipts) }))
    }
}

#[async_trait]
impl Publisher for Session {
    fn profile(&self) -> Capabilities {
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::One, batch_len: 256 }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        for Submission { ticket, message } in batch {
            let is_slow = is_busy(&message) && !self.broker.is_fast.load(Ordering::SeqCst);
            self.broker.messages.lock().unwrap().arrive(&message);
            let receipts = Arc::clone(&self.receipts);
            tokio::spawn(async move {
                if is_slow {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                receipts.send(ticket, Ok(()));
            });
        }
    }

    async fn close(self: Box<Self>, _: Duration) {}
}

fn is_busy(message: &Message) -> bool {
    message.key.as_ref().is_some_and(|key| key.as_str() == BUSY)
}

impl SlowForOne {
    async fn waits_until(&self, is_there: impl Fn(&Messages) -> bool) {
        while !is_there(&self.messages.lock().unwrap()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Goal: messages of other keys do not wait behind the messages of one key that a relay cannot keep
/// in memory. Oracle: how many of the burst have left, at a known pace, when all others have; then
/// the order and the number of all of them, without copies. Alone, the first half of the burst
/// would take a quarter of an hour.
async fn a_burst_of_one_key_delays_no_other_key<DB: TestDialect>(db: &Database<DB>) {
    let busy = |n: usize| NewMessage::new("orders").key(BUSY).json(&n);
    db.enqueue((0..BURST).map(busy)).await;
    db.enqueue((0..OTHERS).map(|n| NewMessage::new("orders").key(format!("key-{n}")).json(&n))).await;
    db.enqueue((BURST..2 * BURST).map(busy)).await;
    let broker = SlowForOne::default();
    let options = EngineOptions::default().window_entries(500).page_entries(100);
    let log = outbox_log::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let pipeline = Pipeline::new(relay(), log, Arc::new(broker.clone()), options);
    let stop = CancellationToken::new();
    let running = tokio::spawn(pipeline.run(stop.clone()));
    broker.waits_until(|messages| messages.others == OTHERS).await;
    let left = broker.messages.lock().unwrap().busy.len();
    assert!(left < 200, "{left} of the burst left first");
    broker.is_fast.store(true, Ordering::SeqCst);
    broker.waits_until(|messages| messages.busy.len() == 2 * BURST).await;
    stop.cancel();
    running.await.unwrap();
    let busy = std::mem::take(&mut broker.messages.lock().unwrap().busy);
    assert!(busy.into_iter().eq(0..2 * BURST), "not in the order of the log");
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 0);
}
