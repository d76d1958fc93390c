//! A producer: the order and its message commit together, or neither does.
//!
//! `DATABASE_URL=postgres://… TOPIC=orders cargo run -p examples --bin order_service`

use examples::database::prepared;
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional};
use migrations::Line;
use outbox::{EnqueueError, NewMessage, Outbox, TransactionError};
use sqlx::{PgPool, Postgres};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, cents bigint NOT NULL)";

/// Why an order was not placed.
#[derive(Debug)]
enum Refused {
    /// The customer's limit.
    OverLimit,
    /// The message could not be enqueued, or the database refused.
    Enqueue(EnqueueError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OverLimit => f.write_str("over the customer's limit"),
            Self::Enqueue(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::OverLimit => None,
            // Transient errors are recognised among the sources, and the work runs again.
            Self::Enqueue(error) => Some(error),
        }
    }
}

impl<E: Into<EnqueueError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Enqueue(error.into())
    }
}

async fn place(
    pool: &PgPool,
    outbox: &Outbox<Postgres>,
    topic: &str,
    event: OrderPlaced,
) -> Result<(), TransactionError<Refused>> {
    let topic = topic.to_owned();
    outbox
        .transaction(pool, move |tx| {
            let (topic, event) = (topic.clone(), event.clone());
            Box::pin(async move {
                sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
                    .bind(event.order)
                    .bind(event.cents)
                    .execute(tx.connection())
                    .await?;
                tx.stage(NewMessage::new(topic).kind(OrderPlaced::KIND).key(event.key()).json(&event))?;
                // Any error from here on takes the order and the message back.
                if event.cents > 100_000 { Err(Refused::OverLimit) } else { Ok(()) }
            })
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
