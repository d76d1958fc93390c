//! A producer: the order and its message commit together, or neither does.
//!
//! `DATABASE_URL=postgres://… TOPIC=orders cargo run -p examples --bin order_service`

use examples::database::prepared;
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional};
use migrations::Line;
use outbox::{NewMessage, Outbox, OutboxTransaction, Rollback, TransactionError};
use sqlx::{PgPool, Postgres};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, cents bigint NOT NULL)";

async fn place(
    pool: &PgPool,
    outbox: &Outbox<Postgres>,
    topic: &str,
    event: OrderPlaced,
) -> Result<(), TransactionError<Rollback>> {
    let topic = topic.to_owned();
    outbox
        .transaction(pool, async move |tx: &mut OutboxTransaction<Postgres>| {
            sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
                .bind(event.order)
                .bind(event.cents)
                .execute(&mut **tx)
                .await?;
            tx.stage(NewMessage::event(&event).topic(topic))?;
            // Any error from here on rolls back the order and the message.
            if event.cents > 100_000 { Err(Rollback::because("over the customer's limit")) } else { Ok(()) }
        })
        .await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let pool = prepared(&[Line::Outbox], TABLE).await?;
    let topic = optional("TOPIC", "orders");
    let outbox = Outbox::<Postgres>::new();
    for (order, cents) in [(1, 1_250), (2, 990), (3, 250_000)] {
        match place(&pool, &outbox, &topic, OrderPlaced { order, cents }).await {
            Ok(()) => println!("order {order}: placed, message enqueued"),
            Err(TransactionError::Work(refused)) => println!("order {order}: {refused}, nothing enqueued"),
            Err(error) => return Err(error.into()),
        }
    }
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await?;
    let messages: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_message").fetch_one(&pool).await?;
    println!("{orders} orders, {messages} messages");
    Ok(())
}
