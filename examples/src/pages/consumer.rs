//! The code of `docs/consumer.md`.

use std::num::NonZeroUsize;

use outbox_toolkit::prelude::*;

use crate::order::OrderPlaced;
use crate::setting::Failure;

mod whole {
    use std::sync::Arc;

    use outbox_toolkit::kafka::{Config, GroupConfig, Subscriber};
    use outbox_toolkit::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Deserialize)]
    struct OrderPlaced { order: i64, cents: i64 }

    impl Event for OrderPlaced {
        const TOPIC: &'static str = "orders";
        const KIND: &'static str = "order.placed";
    }

    #[derive(Serialize)]
    struct InvoiceIssued { order: i64, cents: i64 }

    impl Event for InvoiceIssued {
        const TOPIC: &'static str = "invoices";
        const KIND: &'static str = "invoice.issued";
        fn key(&self) -> Option<String> { Some(format!("order-{}", self.order)) }
    }

    struct Billing { tax_percent: i64 }

    impl Billing {
        async fn bill(&self, tx: &mut Tx, placed: OrderPlaced) -> Result<(), HandlerError> {
            let (order, cents) = (placed.order, placed.cents * (100 + self.tax_percent) / 100);
            sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
                .bind(order).bind(cents).execute(&mut **tx).await?;
            tx.enqueue(&InvoiceIssued { order, cents }).await?;
            Ok(())
        }
    }

    #[tokio::main]
    async fn main() -> Result<(), Box<dyn std::error::Error>> {
        let pool = outbox_toolkit::pool::<Postgres>("postgres://…/billing").await?; // or a pool of your own
        migrate(&pool).await?;
        let billing = Arc::new(Billing { tax_percent: 19 });
        let group = GroupConfig::new("billing", ["orders"]);
        Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
            .outbox(Outbox::new())
            .on(async move |tx: &mut Tx, placed: OrderPlaced| billing.bill(tx, placed).await)
            .subscribe(Subscriber::new(Config::new(["127.0.0.1:9092"]), group)?)
            .run(shutdown_signal())
            .await?;
        Ok(())
    }
}

async fn bill(tx: &mut Tx, order: OrderPlaced) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
        .bind(order.order).bind(order.cents).execute(&mut **tx).await?;
    Ok(())
}

async fn health(inbox: Inbox<Postgres>, subscriber: impl Subscriber) -> Result<(), Failure> {
    let consumer = Consumer::builder(inbox, "billing").on(bill).subscribe(subscriber).build()?;
    let status = consumer.status();
    let running = tokio::spawn(consumer.run(shutdown_signal()));
    for wait in status.waits() {
        println!("{wait}"); // handler of 0190…: 42s, 3 messages
    }
    running.await??;
    Ok(())
}

async fn probed(inbox: Inbox<Postgres>, subscriber: impl Subscriber, relay: Relay) -> Result<(), Failure> {
    use crate::health::{Health, probes};
    let consumer = Consumer::builder(inbox, "billing").on(bill).subscribe(subscriber).build()?;

    let health = Health { consumer: consumer.status(), relay: relay.health() };
    let listener = tokio::net::TcpListener::bind("0.0.0.0:9466").await?;
    tokio::spawn(async move { axum::serve(listener, probes(health)).await });
    let relay = tokio::spawn(relay.run(shutdown_signal()));
    consumer.run(shutdown_signal()).await?;
    relay.await?;

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

mod foreign {
    use outbox_toolkit::prelude::*;

    use super::bill;

    use outbox_toolkit::message::{ForeignMessage, Malformed, MessageId};
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};

    fn webhook(malformed: &Malformed) -> Result<ForeignMessage, Box<dyn std::error::Error>> {
        let id = malformed.header("x-event-id").ok_or("no x-event-id")?;
        let at = OffsetDateTime::parse(malformed.header("x-event-at").ok_or("no x-event-at")?, &Rfc3339)?;
        Ok(malformed.to_message(MessageId::derived(at, ["shop", id])?, "order.placed")?)
    }

    fn build(inbox: Inbox<Postgres>) {
        drop({
            Consumer::builder(inbox, "billing").on_foreign(webhook).on(bill)
        });
    }
}

mod mappings {
    use outbox_toolkit::prelude::*;

    use super::bill;

    use outbox_toolkit::message::{EventType, ForeignMessage, Malformed, Message, foreign};

    fn placed(delivery: &Malformed) -> Result<ForeignMessage, Box<dyn std::error::Error>> {
        Ok(foreign::sns(delivery)?.kind(EventType::new("order.placed")?))
    }

    async fn deleted(tx: &mut Tx, change: &Message) -> Result<(), HandlerError> {
        let order = change.key.as_ref().map(|key| key.as_str());
        sqlx::query("DELETE FROM invoice WHERE order_key = $1").bind(order).execute(&mut **tx).await?;
        Ok(())
    }

    fn build_of_sns(inbox: Inbox<Postgres>) {
        drop({
            Consumer::builder(inbox, "billing").on_foreign(placed).on(bill)
        });
    }

    fn build_of_any(inbox: Inbox<Postgres>) {
        drop({
            Consumer::builder(inbox, "billing").on_foreign(foreign::any).on_message("orders.deleted", deleted)
        });
    }
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
