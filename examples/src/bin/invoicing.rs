//! Consumes orders and produces invoices: the invoice, the inbox row and the event `InvoiceIssued`
//! commit together, or none of them does. The handler has state.
//!
//! `DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9092 cargo run -p examples --bin invoicing`

use std::sync::Arc;

use examples::database::prepared;
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional, required};
use migrations::Line;
use outbox_toolkit::kafka::{Config, GroupConfig, Subscriber};
use outbox_toolkit::prelude::*;
use serde::Serialize;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, cents bigint NOT NULL)";

/// An invoice was issued.
#[derive(Serialize)]
struct InvoiceIssued {
    order: i64,
    cents: i64,
}

impl Event for InvoiceIssued {
    const TOPIC: &'static str = "invoices";
    const KIND: &'static str = "invoice.issued";

    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}

/// The state of the service.
struct Billing {
    tax_percent: i64,
}

impl Billing {
    async fn bill(&self, tx: &mut Tx, placed: OrderPlaced) -> Result<(), HandlerError> {
        let (order, cents) = (placed.order, placed.cents * (100 + self.tax_percent) / 100);
        sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
            .bind(order)
            .bind(cents)
            .execute(&mut **tx)
            .await?;
        tx.enqueue(&InvoiceIssued { order, cents }).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let pool = prepared(&[Line::Inbox, Line::Outbox], TABLE).await?;
    let billing = Arc::new(Billing { tax_percent: optional("TAX_PERCENT", "19").parse()? });
    let group = GroupConfig::new("billing", [OrderPlaced::TOPIC]);
    let subscriber = Subscriber::new(Config::new([required("KAFKA_BROKERS")?]), group)?;
    Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
        .outbox(Outbox::new())
        .on(async move |tx: &mut Tx, placed: OrderPlaced| billing.bill(tx, placed).await)
        .subscribe(subscriber)
        .run(shutdown_signal())
        .await?;
    Ok(())
}
