//! The code of `docs/consumer.md`.

use std::num::NonZeroUsize;
use std::time::Duration;

use outbox_toolkit::kafka::{self, Config, GroupConfig};
use outbox_toolkit::prelude::*;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::order::OrderPlaced;
use crate::setting::Failure;

#[derive(Serialize, Deserialize)]
struct OrderCancelled {
    order: i64,
}

impl Event for OrderCancelled {
    const TOPIC: &'static str = "orders";
    const KIND: &'static str = "order.cancelled";
}

async fn bill(tx: &mut Tx, order: OrderPlaced) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
        .bind(order.order).bind(order.cents).execute(&mut **tx).await?;
    Ok(())
}

async fn refund(tx: &mut Tx, order: OrderCancelled, received: &Received) -> Result<(), HandlerError> {
    sqlx::query("DELETE FROM invoice WHERE order_id = $1").bind(order.order).execute(&mut **tx).await?;
    println!("order {} was cancelled at {}", order.order, received.enqueued_at);
    Ok(())
}

async fn consume() -> Result<(), Failure> {
    let pool = outbox_toolkit::pool::<Postgres>("postgres://…/billing").await?; // or a pool of your own
    Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
        .on(bill)
        .on(refund)
        .subscribe(kafka::Subscriber::new(Config::new(["127.0.0.1:9092"]), GroupConfig::new("billing", ["orders"]))?)
        .run(shutdown_signal())
        .await?;
    Ok(())
}

async fn health(inbox: Inbox<Postgres>, subscriber: impl Subscriber) -> Result<(), Failure> {
    let consumer = Consumer::builder(inbox, "billing").on(bill).subscribe(subscriber).build()?;
    let status = consumer.status();
    tokio::spawn(consumer.run(shutdown_signal()));
    // GET /livez: status.is_alive(); GET /readyz: status.stalled_for() < Duration::from_secs(300)
    assert!(status.is_alive() && status.stalled_for() < Duration::from_secs(300));
    Ok(())
}

async fn tenants(inbox: Inbox<Postgres>, subscriber: impl Subscriber) -> Result<(), Failure> {
    Consumer::builder(inbox, "billing")
        .on(bill)
        .try_tenant(|message| match message.headers.get("tenant") {
            Some(tenant) => Tenant::new(tenant).map_err(|error| error.to_string()),
            None => Err(String::from("no header tenant")),
        })
        .subscribe(subscriber)
        .run(shutdown_signal())
        .await?;
    Ok(())
}

async fn foreign(inbox: Inbox<Postgres>, subscriber: impl Subscriber) -> Result<(), Failure> {
    Consumer::builder(inbox, "billing")
        .on(bill)
        .on_foreign(|malformed| {
            let at = OffsetDateTime::parse(malformed.find("ce_time")?, &Rfc3339).ok()?;
            let topic = Topic::new(malformed.topic.as_str()).ok()?;
            let kind = EventType::new(malformed.find("ce_type")?).ok()?;
            let mut message = Message::new(topic, kind, malformed.payload.clone());
            message.id = MessageId::derived(at, [malformed.find("ce_source")?, malformed.find("ce_id")?]).ok()?;
            message.time = at;
            Some(message)
        })
        .subscribe(subscriber)
        .run(shutdown_signal())
        .await?;
    Ok(())
}

async fn bill_all(tx: &mut Tx, placed: Vec<OrderPlaced>) -> Result<(), HandlerError> {
    let (orders, cents): (Vec<i64>, Vec<i64>) = placed.iter().map(|one| (one.order, one.cents)).unzip();
    let bill = "INSERT INTO invoice (order_id, cents) SELECT * FROM unnest($1::bigint[], $2::bigint[])";
    sqlx::query(bill).bind(orders).bind(cents).execute(&mut **tx).await?;
    Ok(())
}

async fn batches(inbox: Inbox<Postgres>, subscriber: impl Subscriber) -> Result<(), Failure> {
    let consumer = Consumer::builder(inbox, "billing").on_batch(bill_all).batch(const { NonZeroUsize::new(200).unwrap() });
    consumer.subscribe(subscriber).run(shutdown_signal()).await?;
    Ok(())
}
