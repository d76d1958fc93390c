//! Bills every order once, whatever the broker delivers how often.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown};
use message::Message;
use message::subscription::{Subscription, SubscriptionError};
use migrations::{Line, Migrator};
use sqlx::{PgPool, Postgres, Transaction};

use crate::order::OrderPlaced;
use crate::setting::{Failure, optional, required};

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
    let pool = outbox::pool::<Postgres>(&required("DATABASE_URL")?).await?;
    prepare(&pool).await?;
    let expected: i64 = optional("INVOICES", "2").parse()?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox, ConsumerName::new("billing")?)
        .subscription(subscribe)
        .handler(Billing)
        .concurrency(NonZeroUsize::MIN.saturating_add(3))
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    while count(&pool).await? < expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.graceful.cancel();
    running.await??;
    let invoices: Vec<(i64, i64)> =
        sqlx::query_as("SELECT order_id, cents FROM invoice ORDER BY order_id, id").fetch_all(&pool).await?;
    for (order, cents) in &invoices {
        println!("order {order}: invoice over {}.{:02} EUR", cents / 100, cents % 100);
    }
    println!("{} invoices", invoices.len());
    Ok(())
}

/// A service would do this in its deployment: `relay migrate up --line inbox`.
async fn prepare(pool: &PgPool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await?;
    Migrator::<Postgres>::new(Line::Inbox).up(&mut connection).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS invoice (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, cents bigint NOT NULL)",
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

async fn count(pool: &PgPool) -> Result<i64, Failure> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM invoice").fetch_one(pool).await?)
}
