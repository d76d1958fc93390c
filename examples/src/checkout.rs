//! The saga of an order: reserve the item, charge, ship; or undo all of that.
//!
//! Three services take part, each with its own database: the shop, whose stock is beside the saga;
//! a bank, called over HTTP (`bank`); and shipping, which gets messages and is not written in Rust
//! (`shipping/shipping.py`).

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_toolkit::prelude::*;
use outbox_toolkit::rabbitmq::QueueOptions;
use outbox_toolkit::saga::{KEY_HEADER, Retry, Run, Stop};
use serde::{Deserialize, Serialize};

use crate::provider::{Declined, Provider};
use crate::setting::Failure;

/// The type of the saga.
pub const CHECKOUT: &str = "checkout";

/// The tables of the shop, and its stock.
pub const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, cents bigint NOT NULL, parcel bigint,
        state text NOT NULL DEFAULT 'pending');
    CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, free bigint NOT NULL CHECK (free >= 0));
    CREATE TABLE IF NOT EXISTS hold (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL, item text NOT NULL);
    INSERT INTO stock VALUES ('anvil', 50), ('book', 1000), ('first edition', 0) ON CONFLICT DO NOTHING;";

/// How the queues of requests and replies are declared, here and by shipping: no message is dropped
/// because outages made the broker deliver it again and again.
#[must_use]
pub fn queue() -> QueueOptions {
    QueueOptions::default().quorum(true).deliveries_max(NonZeroU32::new(1_000_000))
}

/// The input of the saga.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlaceOrder {
    /// The order.
    pub order: i64,
    /// The item, one of which is sold.
    pub item: String,
    /// Its price.
    pub cents: i64,
    /// Its weight.
    pub grams: i64,
}

/// Its output.
#[derive(Debug, Serialize)]
pub struct Receipt {
    charge: String,
    parcel: i64,
}

/// Asks shipping for a parcel.
#[derive(Serialize)]
struct ShipOrder {
    order: i64,
    grams: i64,
}

impl Event for ShipOrder {
    const TOPIC: &'static str = "ship";
    const KIND: &'static str = "order.ship";

    /// Keeps a request before the message that cancels it.
    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}

/// The reply of shipping.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shipped {
    Parcel(i64),
    Refused(String),
}

/// All that the saga needs besides its database.
#[derive(Debug, Clone)]
pub struct Services {
    /// The bank, which charges and refunds money.
    pub bank: Provider,
    /// The queue of requests to shipping.
    pub ship: String,
    /// How long shipping may take.
    pub patience: Duration,
}

/// Sells one item. After every pause and crash it runs from its beginning; steps that have an
/// outcome return it.
///
/// # Errors
/// The reason why the order cannot be fulfilled. Then everything is undone, the last step first.
pub async fn checkout(saga: &mut Run, order: PlaceOrder, services: &Services) -> Result<Receipt, Stop> {
    let Services { bank, ship, patience } = services;
    // Undone last: until then the order is pending, so nothing treats it as settled.
    saga.step("accept", async |_| Ok(())).undo(async |tx, (): &()| cancel(tx, order.order).await).await?;
    saga.step("reserve", async |tx| reserve(tx, &order).await)
        .undo(async |tx, hold: &i64| release(tx, *hold).await)
        .await?;
    let charge: String = saga
        .call("charge", async |key: &StepKey| charge(bank, key, order.cents).await)
        // Runs even when it is unknown whether the charge was made.
        .undo(async |key, _: Option<&String>| bank.refund(&key.to_string()).await.map_err(failed))
        .retry(Retry::times(100).within(Duration::from_mins(10)))
        .await?;
    let request = ShipOrder { order: order.order, grams: order.grams };
    let key = saga.key("ship");
    let reply: Shipped = saga
        .request("ship", NewMessage::event(&request).topic(ship))
        .within(*patience)
        .undo(async |tx, reply: Option<&Shipped>| {
            if !matches!(reply, Some(Shipped::Refused(_))) {
                let take_back = NewMessage::event(&request).topic(ship).kind("order.unship");
                tx.enqueue(take_back.header(KEY_HEADER, &key)).await?;
            }
            Ok(())
        })
        .await?;
    let parcel = match reply {
        Shipped::Parcel(parcel) => parcel,
        Shipped::Refused(reason) => return Err(Stop::because(reason)),
    };
    saga.step("confirm", async |tx| confirm(tx, order.order, parcel).await).await?;
    Ok(Receipt { charge, parcel })
}

type Step<'t> = &'t mut OutboxTransaction<Postgres>;

async fn reserve(tx: Step<'_>, order: &PlaceOrder) -> Result<i64, StepError> {
    // Checks and takes in one statement: two sagas cannot both take the last one.
    let take = "UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0";
    if sqlx::query(take).bind(&order.item).execute(&mut **tx).await?.rows_affected() == 0 {
        return Err(StepError::stop("sold out"));
    }
    let hold = "INSERT INTO hold (order_id, item) VALUES ($1, $2) RETURNING id";
    Ok(sqlx::query_scalar(hold).bind(order.order).bind(&order.item).fetch_one(&mut **tx).await?)
}

async fn release(tx: Step<'_>, hold: i64) -> Result<(), sqlx::Error> {
    let give_back = "WITH gone AS (DELETE FROM hold WHERE id = $1 RETURNING item)
        UPDATE stock SET free = free + 1 FROM gone WHERE stock.item = gone.item";
    sqlx::query(give_back).bind(hold).execute(&mut **tx).await?;
    Ok(())
}

async fn charge(bank: &Provider, key: &StepKey, cents: i64) -> Result<String, StepError> {
    let answer = bank.charge(&key.to_string(), cents).await.map_err(failed)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Classifies a failure: the call may succeed later, or was declined for good.
fn failed(error: Failure) -> StepError {
    match error.downcast_ref::<Declined>() {
        Some(declined) => StepError::stop(declined.to_string()),
        None => StepError::retry(format!("{error:#}")),
    }
}

async fn confirm(tx: Step<'_>, order: i64, parcel: i64) -> Result<(), sqlx::Error> {
    let confirm = "UPDATE orders SET state = 'confirmed', parcel = $2 WHERE id = $1";
    sqlx::query(confirm).bind(order).bind(parcel).execute(&mut **tx).await?;
    Ok(())
}

async fn cancel(tx: Step<'_>, order: i64) -> Result<(), sqlx::Error> {
    let cancel = "UPDATE orders SET state = 'cancelled', parcel = NULL WHERE id = $1";
    sqlx::query(cancel).bind(order).execute(&mut **tx).await?;
    Ok(())
}
