//! A service with everything in one process: SQLite, its own relay, and a broker in memory.
//!
//! `cargo run -p examples --bin embedded_relay` — needs nothing.

use examples::order::OrderPlaced;
use examples::setting::Failure;
use outbox_toolkit::memory::Broker;
use outbox_toolkit::message::{MaxInFlightPerKey, SizeLimit, Topic};
use outbox_toolkit::prelude::*;
use tokio::sync::oneshot;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("embedded-relay-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let url = format!("sqlite://{}?mode=rwc", folder.join("orders.db").display());
    let pool = outbox_toolkit::pool::<Sqlite>(&url).await?;
    migrate(&pool).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
        .execute(&pool)
        .await?;

    let outbox = Outbox::<Sqlite>::new();
    let broker = Broker::new();
    let relay = Relay::builder(&pool)
        .connector(broker.connector(MaxInFlightPerKey::Pipelined), SizeLimit::PORTABLE)
        // A commit in this process wakes the relay at once.
        .woken_by(&outbox)
        .build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));

    for order in 1..=3 {
        let event = OrderPlaced { order, cents: order * 1_000 };
        let mut tx = outbox.begin(&pool).await?;
        sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
            .bind(event.order)
            .bind(event.cents)
            .execute(&mut *tx)
            .await?;
        tx.enqueue(&event).await?;
        tx.commit().await?;
        println!("order {order}: placed");
    }

    let topic = Topic::new("orders")?;
    broker.stored(&topic, 3).await;
    drop(stop);
    relay.await?;
    for message in broker.log(&topic) {
        let event: OrderPlaced = serde_json::from_slice(&message.payload)?;
        println!("published: {} of order {}, {} cents", message.kind, event.order, event.cents);
    }
    pool.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
