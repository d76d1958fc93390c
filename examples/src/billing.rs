//! Bills every order once, whatever the broker delivers how often.

use async_trait::async_trait;
use inbox::{Handler, HandlerError};
use message::Message;
use message::subscription::{Subscription, SubscriptionError};
use migrations::Line;
use sqlx::{Postgres, Transaction};

use crate::consuming::{Until, consume};
use crate::database::prepared;
use crate::order::OrderPlaced;
use crate::setting::{Failure, optional};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, cents bigint NOT NULL)";

/// The effect: one invoice per order.
struct Billing;

#[async_trait]
impl Handler<Postgres> for Billing {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let event: OrderPlaced = serde_json::from_slice(&message.payload)
            .map_err(|error| HandlerError::reject("the payload is not an order").with_source(error))?;
        // No "ON CONFLICT": the inbox row in the same transaction already sees to "once".
        sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
            .bind(event.order)
            .bind(event.cents)
            .execute(&mut **tx)
            .await?;
        Ok(None)
    }
}

/// Consumes until `INVOICES` invoices exist (default 2), then prints them and stops.
///
/// # Errors
/// Whatever the database refuses, or a setting that is missing.
pub async fn run<F, Fut>(subscribe: F) -> Result<(), Failure>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
{
    let pool = prepared(&[Line::Inbox], TABLE).await?;
    let until = Until { count: "SELECT count(*) FROM invoice", expected: optional("INVOICES", "2").parse()? };
    consume(&pool, "billing", subscribe, Billing, until).await?;
    let invoices: Vec<(i64, i64)> =
        sqlx::query_as("SELECT order_id, cents FROM invoice ORDER BY order_id, id").fetch_all(&pool).await?;
    for (order, cents) in &invoices {
        println!("order {order}: invoice over {}.{:02} EUR", cents / 100, cents % 100);
    }
    println!("{} invoices", invoices.len());
    Ok(())
}
