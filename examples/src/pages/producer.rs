//! The code of `docs/producer.md`.

use outbox_toolkit::prelude::*;
use sqlx::PgPool;

use crate::order::OrderPlaced;
use crate::setting::Failure;

async fn begin(event: OrderPlaced) -> Result<(), Failure> {
    let pool = outbox_toolkit::pool::<Postgres>("postgres://…/orders").await?; // or your own pool
    let outbox = Outbox::<Postgres>::new();

    let mut tx = outbox.begin(&pool).await?;
    sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
        .bind(event.order).bind(event.cents).execute(&mut *tx).await?;
    tx.enqueue(&event).await?;
    tx.commit().await?;
    Ok(())
}

async fn transaction(
    pool: PgPool,
    outbox: Outbox<Postgres>,
    event: OrderPlaced,
    limit: i64,
) -> Result<(), Failure> {
    let placed = outbox.transaction(&pool, async move |tx: &mut OutboxTransaction<Postgres>| {
        let order = "INSERT INTO orders (id, cents) VALUES ($1, $2)";
        sqlx::query(order).bind(event.order).bind(event.cents).execute(&mut **tx).await?;
        tx.enqueue(&event).await?;
        if event.cents > limit { Err(Rollback::because("over the customer's limit")) } else { Ok(()) }
    });
    match placed.await {
        Ok(()) => println!("placed"),
        Err(TransactionError::Work(Rollback::Because(reason))) => println!("refused: {reason}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
