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
mod failures;
mod guard;
mod held_keys;
mod held_redrives;
mod keep_alive;
mod locks;
mod many;
mod metrics;
mod minutes;
mod moved;
mod retention;
mod runner;
mod services;
mod waiting;

use std::time::Duration;

use database::{Database, TestDatabase};
use inbox::{ConsumerName, Tenant};
use message::{ContentType, EventType, Message, MessageId, OrderingKey, Topic};
use time::OffsetDateTime;

pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    [
        batch_functions::trials(),
        begun::trials(),
        chunks::trials(),
        consumer::trials(),
        copies::trials(),
        cost::trials(),
        dead_letters::trials(),
        ended::trials(),
        ends::trials(),
        enqueueing::trials(),
        failures::trials(),
        guard::trials(),
        held_keys::trials(),
        held_redrives::trials(),
        keep_alive::trials(),
        locks::trials(),
        many::trials(),
        metrics::trials(),
        minutes::trials(),
        moved::trials(),
        retention::trials(),
        runner::trials(),
        services::trials(),
        waiting::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Long enough for a loaded machine; reached only when something hangs.
pub const DEADLINE: Duration = Duration::from_secs(240);

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
pub(crate) async fn on<DB: TestDatabase>(case: impl AsyncFnOnce(&Database<DB>)) {
    let database = DB::create().await;
    case(&database).await;
    DB::remove(database).await;
}

/// Does the same within a deadline.
pub(crate) async fn each<DB: TestDatabase>(case: impl AsyncFnOnce(&Database<DB>)) {
    on::<DB>(async |database| tokio::time::timeout(DEADLINE, case(database)).await.unwrap()).await;
}
