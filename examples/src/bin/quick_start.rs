//! Orders are placed, published to Kafka and billed once: a producer, a relay and a consumer in one
//! service.
//!
//! `DATABASE_URL=postgres://… KAFKA=host:port cargo run -p examples --bin quick_start` — until
//! Ctrl-C.

use anyhow::Context as _;
use outbox_toolkit::kafka::{Admin, Config, GroupConfig, Subscriber, TopicPlan};
use outbox_toolkit::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
    cents: i64,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.placed";

    /// Keeps the messages of one order in sequence.
    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}

/// The producer: the order and its message commit together, or neither does.
async fn place(outbox: &Outbox<Postgres>, pool: &PgPool, cents: i64) -> anyhow::Result<()> {
    let mut tx = outbox.begin(pool).await?;
    let order = sqlx::query_scalar("INSERT INTO orders (cents) VALUES ($1) RETURNING id")
        .bind(cents)
        .fetch_one(&mut *tx)
        .await?;
    tx.enqueue(&OrderPlaced { order, cents }).await?;
    tx.commit().await?;
    println!("order {order}: placed");
    Ok(())
}

/// The consumer's effect: it commits with the record of the message, so it happens once.
async fn bill(tx: &mut Tx, event: OrderPlaced) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
        .bind(event.order)
        .bind(event.cents)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS invoice (order_id bigint NOT NULL, cents bigint NOT NULL);";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The logs of relay and consumer say what they wait for, and what to do about it.
    tracing_subscriber::fmt().init();
    let kafka = Config::new([std::env::var("KAFKA").context("KAFKA is not set")?]);
    let database = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    // Tables and topic: normally created by the deployment.
    let pool = outbox_toolkit::pool::<Postgres>(&database).await?;
    migrate(&pool).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    Admin::new(&kafka)?.create_topics(&[TopicPlan::new("orders", 3)]).await?;

    let outbox = Outbox::<Postgres>::new();
    let relay = Relay::builder(&pool).kafka_with(kafka.clone())?.woken_by(&outbox).build()?;
    let relay = tokio::spawn(relay.run(shutdown_signal()));

    for cents in [1250, 990, 4200] {
        place(&outbox, &pool, cents).await?;
    }

    Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
        .on(bill)
        .subscribe(Subscriber::new(kafka, GroupConfig::new("billing", ["orders"]))?)
        .run(shutdown_signal())
        .await?;
    // The relay releases its lease, so that the next start proceeds at once.
    relay.await?;
    Ok(())
}
