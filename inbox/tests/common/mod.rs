//! What the tests of the inbox share: a database per test, effects that can be counted, and a broker in memory.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part of this")]

pub mod broker;
pub mod database;

use std::time::Duration;

use inbox::{ConsumerName, Scope};
use message::{EventType, Message, MessageId, OrderingKey, Topic};
use time::OffsetDateTime;

/// Long enough for a loaded machine; reached only when something hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn consumer(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}

pub fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

pub fn message(payload: &str) -> Message {
    let topic = Topic::new("orders").unwrap();
    Message::new(topic, EventType::new("order.placed").unwrap(), payload.to_owned())
}

pub fn keyed(key: &str, payload: &str) -> Message {
    message(payload).with_key(OrderingKey::new(key).unwrap())
}

/// A message whose id was made at another time.
pub fn message_of(at: OffsetDateTime, payload: &str) -> Message {
    message(payload).with_id(MessageId::derived(at, [payload, "salt"]).unwrap())
}

/// Runs a generic test on SQLite, and on PostgreSQL when `OUTBOX_POSTGRES_URL` names one.
#[macro_export]
macro_rules! on_each_database {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                use $crate::common::database::TestDatabase;
                let database = <sqlx::Sqlite as TestDatabase>::create().await.unwrap();
                println!("ran on SQLite");
                tokio::time::timeout($crate::common::DEADLINE, super::$test(&database)).await.unwrap();
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                use $crate::common::database::TestDatabase;
                let Some(database) = <sqlx::Postgres as TestDatabase>::create().await else {
                    println!("NOT RUN on PostgreSQL: OUTBOX_POSTGRES_URL is not set");
                    return;
                };
                println!("ran on PostgreSQL");
                tokio::time::timeout($crate::common::DEADLINE, super::$test(&database)).await.unwrap();
                database.drop_schema().await;
            })*
        }
    };
}
