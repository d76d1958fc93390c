//! Producers: their output, and the contents of the database afterwards.

use std::path::Path;
use std::sync::Arc;

use brokers::memory::Broker;
use engine::{EngineOptions, Pipeline};
use libtest_mimic::Trial;
use message::{MaxInFlightPerKey, Message, Source, Topic};
use outbox_log::{LogOptions, RelayName};
use sqlx::Postgres;
use tests::{Backend, Database, Failure, Outcome, Stage, trial};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::program;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("order_service/postgres", &[Backend::Postgres], order_service),
        trial("embedded_relay/sqlite", &[], |_| embedded_relay()),
        program::with("psql", "plain_sql/postgres", |name| trial(name, &[Backend::Postgres], plain_sql)),
    ]
}

/// The output of the order service in an empty database.
pub(crate) const PLACED: [&str; 4] = [
    "order 1: placed, message enqueued",
    "order 2: placed, message enqueued",
    "order 3: over the customer's limit, nothing enqueued",
    "2 orders, 2 messages",
];

/// Goal: an order and its message commit together, or neither does. Oracle: the text, and the rows.
async fn order_service(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::empty(&stage).await?;
    let printed =
        program::example("order_service", &[("DATABASE_URL", &database.url), ("TOPIC", "orders")]).await?;
    assert_eq!(printed, PLACED);
    let orders = database.texts("SELECT id::text FROM orders ORDER BY id").await?;
    assert_eq!(orders, ["1", "2"]);
    let messages = database.texts(
        "SELECT topic || ' ' || key || ' ' || convert_from(payload, 'UTF8') FROM outbox_message ORDER BY id",
    );
    assert_eq!(
        messages.await?,
        [r#"orders order-1 {"order":1,"cents":1250}"#, r#"orders order-2 {"order":2,"cents":990}"#]
    );
    Ok(())
}

/// Goal: producer, relay and broker work in one process. Oracle: the text.
async fn embedded_relay() -> Outcome {
    let printed = program::example("embedded_relay", &[]).await?;
    let expected = [
        "order 1: placed",
        "order 2: placed",
        "order 3: placed",
        "published: order.placed of order 1, 1000 cents",
        "published: order.placed of order 2, 2000 cents",
        "published: order.placed of order 3, 3000 cents",
    ];
    assert_eq!(printed, expected);
    Ok(())
}

/// Goal: a producer in another language enqueues in its own transaction, with the function and with
/// a plain INSERT. Oracle: the text, and the messages that a relay publishes.
async fn plain_sql(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/plain-sql/place_order.sql");
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--set", "topic=orders", "--file"]).arg(script).arg(&database.url);
    let printed = program::lines(psql).await?;
    assert_eq!(printed, ["order 101: message of version 7", "order 103: taken back", "2 orders"]);

    let published = publish(&database.url, 2).await?;
    let told: Vec<String> = published.iter().map(told).collect::<Result<_, _>>()?;
    let expected = [
        "order-101 order.placed tenant=acme order=101 cents=1250",
        "order-102 order.placed tenant= order=102 cents=990",
    ];
    assert_eq!(told, expected);
    Ok(())
}

fn told(message: &Message) -> Result<String, Failure> {
    let key = message.key.as_ref().ok_or("no key")?;
    let tenant = message.headers.get("tenant").unwrap_or_default();
    // The payload is parsed instead of compared as text, because `jsonb` reorders the members of an
    // object.
    let order: serde_json::Value = serde_json::from_slice(&message.payload)?;
    Ok(format!("{key} {} tenant={tenant} order={} cents={}", message.kind, order["order"], order["cents"]))
}

/// Runs a relay from this database to an in-memory broker until it has `count` messages.
async fn publish(url: &str, count: usize) -> Result<Vec<Message>, Failure> {
    let broker = Broker::new();
    let store = outbox_log::open(url, Source::new("/orders")?, LogOptions::default())?;
    let connector = Arc::new(broker.connector(MaxInFlightPerKey::Pipelined));
    let stop = CancellationToken::new();
    let pipeline = Pipeline::new(RelayName::new("orders")?, store, connector, EngineOptions::default());
    let relay = tokio::spawn(pipeline.run(stop.clone()));
    let topic = Topic::new("orders")?;
    broker.stored(&topic, count).await;
    stop.cancel();
    relay.await?;
    Ok(broker.log(&topic))
}
