//! The code of `docs/tokens.md`.

use outbox_toolkit::outbox::nodes::{NodeIds, NodeOptions};
use outbox_toolkit::prelude::*;
use sqlx::types::time::OffsetDateTime;
use sqlx::{PgPool, Transaction};

use crate::setting::Failure;

struct Order {
    placed_at: OffsetDateTime,
}

async fn derived(
    outbox: Outbox<Postgres>,
    mut tx: Transaction<'static, Postgres>,
    order: Order,
    payload: String,
) -> Result<(), Failure> {
    let id = MessageId::derived(order.placed_at, ["order-7", "place", &payload])?;    // again after a crash: the same id
    outbox.enqueue(&mut tx, NewMessage::new("orders").id(id).payload(payload)).await?;   // Enqueued::Duplicate the second time
    Ok(tx.commit().await?)
}

async fn of_a_node(pool: PgPool) -> Result<Outbox<Postgres>, Failure> {
    let ids = NodeIds::open(pool.clone(), NodeOptions::default()).await?;              // once per process
    let outbox = Outbox::<Postgres>::builder().ids(ids).build();
    Ok(outbox)
}
