//! The process that starts sagas, and cancels some.

use std::num::NonZeroU32;
use std::time::Duration;

use inbox::Signature;
use outbox::Outbox;
use rand::Rng as _;
use saga::{SagaId, Sagas};
use sqlx::{Postgres, Sqlite};
use uuid::Uuid;

use super::checkout::Order;
use super::shop::Shop;
use super::{CHECKOUT, VERSION};
use crate::Failure;
use crate::process;

/// The task of a process that starts sagas.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct OrdersTask {
    /// The database of the sagas.
    pub database: String,
    /// Average pause between two starts.
    pub pause: Duration,
}

const CONNECTIONS: NonZeroU32 = NonZeroU32::new(4).unwrap();
/// Percentage of sagas that are cancelled.
const CANCELLED: u32 = 6;
/// Maximum time between the start of a saga and its cancellation.
const CANCELLED_WITHIN_MS: u64 = 800;
const ORDER: &str = "INSERT INTO shop_order (id) VALUES ($1)";

/// Starts sagas until it is stopped.
///
/// # Errors
/// The task cannot be used, or the tables cannot be opened. The process is then started again.
pub(crate) async fn run(task: OrdersTask) -> Result<(), Failure> {
    match outbox::connect::dialect_of(&task.database)? {
        migrations::Dialect::Postgres => start_sagas::<Postgres>(task).await,
        migrations::Dialect::Sqlite => start_sagas::<Sqlite>(task).await,
    }
}

async fn start_sagas<DB: Shop>(task: OrdersTask) -> Result<(), Failure> {
    let stop = process::stop_on_signals()?;
    let pool = DB::pool(&task.database, CONNECTIONS)?;
    let sagas = Sagas::builder(pool, Outbox::new()).starts(CHECKOUT, VERSION).open().await?;
    while !stop.is_cancelled() {
        // If a start fails, or its outcome is unknown, both saga and order exist, or neither.
        if let Err(error) = start_one(&sagas).await {
            eprintln!("a saga was not started: {error}");
        }
        let pause = task.pause.mul_f64(rand::rng().random_range(0.2..1.8));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

async fn start_one<DB: Shop>(sagas: &Sagas<DB>) -> Result<(), Failure> {
    let id = Uuid::new_v4().simple().to_string();
    let mut tx = Outbox::new().begin(sagas.pool()).await?;
    assert_eq!(sagas.start(&mut tx, CHECKOUT, &id, &Order::random()).await?, saga::Started::Started);
    DB::execute(tx.connection(), ORDER, &[&id], None).await?;
    tx.commit().await?;
    if rand::rng().random_range(0..100) < CANCELLED {
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..CANCELLED_WITHIN_MS))).await;
        let signature =
            Signature { actor: "storm".into(), note: "cancelled at random".into(), selection: None };
        // A saga that has ended meanwhile cannot be cancelled.
        if let Err(error) = sagas.cancel(&SagaId::new(CHECKOUT, &*id)?, &signature).await {
            eprintln!("{id} was not cancelled: {error}");
        }
    }
    Ok(())
}
