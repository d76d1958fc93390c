//! The shared parts of the inbox tests: a database for each test, effects that can be counted, and
//! an in-memory broker.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a test fails by panicking")]

mod batch_functions;
mod begun;
pub(crate) mod broker;
mod chunks;
mod consumer;
mod copies;
mod cost;
mod database;
mod dead_letters;
mod ended;
mod ends;
mod enqueueing;
mod erasure;
mod failures;
mod functions;
mod guard;
mod held_keys;
mod held_redrives;
mod keep_alive;
mod locks;
mod many;
mod metrics;
mod minutes;
mod moved;
mod purged_by_sql;
mod retention;
mod runner;
mod services;
mod waiting;

use database::{Database, TestDatabase};
use inbox::{ConsumerName, Tenant};
use message::{ContentType, EventType, Message, MessageId, OrderingKey, Topic};
use tests::Stage;
use time::OffsetDateTime;

tests::cases! {
    modules {
        batch_functions, begun, chunks, consumer, copies, cost, dead_letters, ended, ends,
        enqueueing, erasure, failures, functions, guard, held_keys, held_redrives, keep_alive, locks, many, metrics,
        minutes, moved, purged_by_sql, retention, runner, services, waiting,
    }
}

pub fn consumer(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}

pub fn scope(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

pub fn message(payload: &str) -> Message {
    let topic = Topic::new("orders").unwrap();
    Message::new(topic, EventType::new("order.placed").unwrap(), payload.to_owned())
}

pub fn json(payload: &str) -> Message {
    Message { content_type: ContentType::json(), ..message(payload) }
}

pub fn keyed(key: &str, payload: &str) -> Message {
    message(payload).with_key(OrderingKey::new(key).unwrap())
}

/// Returns a message whose id has this timestamp.
pub fn message_of(at: OffsetDateTime, payload: &str) -> Message {
    message(payload).with_id(MessageId::derived(at, [payload, "salt"]).unwrap())
}

/// Runs a case on its own database, and removes the database.
pub(crate) async fn each<DB: TestDatabase>(_: Stage, case: impl AsyncFnOnce(&Database<DB>)) {
    let database = DB::create().await;
    case(&database).await;
    DB::remove(database).await;
}
