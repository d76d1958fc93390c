//! Bills every order once, no matter how often the broker delivers it.

use migrations::Line;
use outbox_toolkit::message::Subscriber;
use outbox_toolkit::prelude::*;

use crate::consuming::until;
use crate::database::prepared;
use crate::order::OrderPlaced;
use crate::setting::{Failure, optional};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, cents bigint NOT NULL)";

/// The effect: one invoice per order. No "ON CONFLICT": the inbox row in the same transaction
/// already ensures "once".
async fn bill(tx: &mut Tx, event: OrderPlaced) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
        .bind(event.order)
        .bind(event.cents)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Consumes until `INVOICES` invoices exist (default 2), then prints them and stops.
///
/// # Errors
/// The database refused, or a setting is missing.
pub async fn run(subscriber: impl Subscriber) -> Result<(), Failure> {
    let pool = prepared(&[Line::Inbox], TABLE).await?;
    let expected = optional("INVOICES", "2").parse()?;
    Consumer::builder(Inbox::open(pool.clone(), InboxOptions::default()).await?, "billing")
        .on(bill)
        .subscribe(subscriber)
        .run(until(pool.clone(), "SELECT count(*) FROM invoice", expected))
        .await?;
    let invoices: Vec<(i64, i64)> =
        sqlx::query_as("SELECT order_id, cents FROM invoice ORDER BY order_id, id").fetch_all(&pool).await?;
    for (order, cents) in &invoices {
        println!("order {order}: invoice over {}.{:02} EUR", cents / 100, cents % 100);
    }
    println!("{} invoices", invoices.len());
    Ok(())
}
