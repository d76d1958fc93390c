//! A service with everything in one process: SQLite, a relay of its own, and a broker in memory.
//!
//! `cargo run -p examples --bin embedded_relay` — needs nothing.

use std::sync::Arc;

use brokers::memory::Broker;
use examples::order::OrderPlaced;
use examples::setting::Failure;
use message::{KeyWindow, Source, Topic};
use migrations::{Line, Migrator};
use outbox::log::{LogOptions, RelayName};
use outbox::{EnqueueError, NewMessage, Outbox};
use relay::engine::{Pipeline, Settings};
use sqlx::Sqlite;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("embedded-relay-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let url = format!("sqlite://{}?mode=rwc", folder.join("orders.db").display());
    let pool = outbox::pool::<Sqlite>(&url).await?;
    Migrator::<Sqlite>::new(Line::Outbox).up(&mut *pool.acquire().await?).await?;

    let outbox = Outbox::<Sqlite>::new();
    let broker = Broker::new();
    let store = outbox::log::open(&url, Source::new("/orders")?, LogOptions::default())?;
    let connector = Arc::new(broker.connector(KeyWindow::Pipelined));
    let stop = CancellationToken::new();
    let pipeline = Pipeline::new(RelayName::new("orders")?, store, connector, Settings::default())
        // A commit in this process wakes the relay at once.
        .with_hint(outbox.wake_up().notify());
    let relay = tokio::spawn(pipeline.run(stop.clone()));

    for order in 1..=3 {
        outbox
            .transaction(&pool, move |tx| {
                Box::pin(async move {
                    let event = OrderPlaced { order, cents: order * 1_000 };
                    tx.stage(
                        NewMessage::new("orders").kind(OrderPlaced::KIND).key(event.key()).json(&event),
                    )?;
                    Ok::<_, EnqueueError>(())
                })
            })
            .await?;
        println!("order {order}: placed");
    }

    let topic = Topic::new("orders")?;
    broker.stored(&topic, 3).await;
    stop.cancel();
    relay.await?;
    for message in broker.log(&topic) {
        let event: OrderPlaced = serde_json::from_slice(&message.payload)?;
        println!("published: {} of order {}, {} cents", message.kind, event.order, event.cents);
    }
    pool.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
