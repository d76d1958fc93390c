//! The code of `docs/sagas.md`.

use std::time::Duration;

use inbox::HandlerError;
use message::{Message, Subscriber};
use outbox_toolkit::prelude::{
    Consumer, Event, Inbox, Outbox, OutboxTransaction, Postgres, Sagas, Started, StepError, StepKey, shutdown_signal,
};
use outbox_toolkit::saga::{Retry, Run, Stop};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::setting::Failure;

type Hold = i64;
type Charge = String;
type Parcel = i64;
type BankError = std::io::Error;

#[derive(Clone, Serialize, Deserialize)]
struct PlaceOrder {
    item: i64,
    cents: i64,
}

#[derive(Serialize)]
struct ShipOrder {
    hold: Hold,
}

impl Event for ShipOrder {
    const TOPIC: &'static str = "ship";
    const KIND: &'static str = "order.ship";
}

#[derive(Serialize)]
struct Receipt {
    charge: Charge,
    parcel: Parcel,
}

#[derive(Clone)]
struct Bank;

impl Bank {
    async fn post(&self, path: &str, key: &str, cents: i64) -> Result<Charge, BankError> {
        Ok(format!("{path} {key} {cents}"))
    }
}

async fn checkout(saga: &mut Run, order: PlaceOrder, bank: &Bank) -> Result<Receipt, Stop> {
    let hold: Hold = saga
        .step("reserve", async |tx| reserve(tx, &order).await)                 // effect, result, messages and progress: one transaction
        .undo(async |tx, hold: &Hold| release(tx, hold).await)
        .await?;
    let charge: Charge = saga
        .call("charge", async |key: &StepKey| bank.charge(key, order.cents).await)
        .undo(async |key, _: Option<&Charge>| bank.refund(key).await)            // also when its outcome stays unknown
        .retry(Retry::times(5).within(Duration::from_mins(10)))
        .await?;
    let parcel: Parcel = saga.request("ship", &ShipOrder { hold }).within(Duration::from_hours(48)).await?; // out by the outbox, answer by the inbox
    saga.sleep("grace", Duration::from_hours(1)).await?;
    Ok(Receipt { charge, parcel })                                               // Err(_) undoes in reverse order
}

async fn reserve(tx: &mut OutboxTransaction<Postgres>, order: &PlaceOrder) -> Result<Hold, StepError> {
    let take = "UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0";
    if sqlx::query(take).bind(order.item).execute(&mut **tx).await?.rows_affected() == 0 {
        return Err(StepError::stop("sold out"));                             // never retried: undoes the saga
    }
    let hold = "INSERT INTO hold (item) VALUES ($1) RETURNING id";
    Ok(sqlx::query_scalar(hold).bind(order.item).fetch_one(&mut **tx).await?)
}

async fn release(tx: &mut OutboxTransaction<Postgres>, hold: &Hold) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM hold WHERE id = $1").bind(*hold).execute(&mut **tx).await?;
    Ok(())
}

impl Bank {
    async fn charge(&self, key: &StepKey, cents: i64) -> Result<Charge, BankError> {
        self.post("/charges", &key.to_string(), cents).await                     // the key is its idempotency key
    }

    async fn refund(&self, key: &StepKey) -> Result<(), BankError> {
        self.post("/refunds", &key.to_string(), 0).await.map(drop)
    }
}

async fn service(pool: PgPool, outbox: Outbox<Postgres>, bank: Bank, order: PlaceOrder) -> Result<(), Failure> {
    let sagas = Sagas::builder(pool.clone(), outbox.clone())
        .saga("checkout", 1, async move |saga: &mut Run, order: PlaceOrder| checkout(saga, order, &bank).await)
        .open()
        .await?;

    let mut tx = outbox.begin(&pool).await?;
    match sagas.start(&mut tx, "checkout", "42", &order).await? {                    // an error if another order has this id
        Started::Started => tx.commit().await?,
        Started::AlreadyThere(state) => println!("order 42 was placed before; its saga is {state}"),
    }

    sagas.run(shutdown_signal()).await;                                              // in any number of processes
    Ok(())
}

async fn note(tx: &mut sqlx::PgConnection, key: StepKey, message: &Message) -> Result<(), HandlerError> {
    let note = sqlx::query("INSERT INTO late_reply (request, payload) VALUES ($1, $2)");
    note.bind(key.to_string()).bind(&message.payload[..]).execute(tx).await?;
    Ok(())
}

async fn answers(
    sagas: Sagas<Postgres>,
    inbox: Inbox<Postgres>,
    subscriber: impl Subscriber,
) -> Result<(), Failure> {
    Consumer::builder(inbox, "checkout-replies")
        .handler(sagas.replies().late(|tx, key, message| Box::pin(async move { note(tx, key, message).await })))
        .subscribe(subscriber)
        .run(shutdown_signal())
        .await?;
    Ok(())
}

mod shipping {
    use outbox_toolkit::prelude::*;
    use outbox_toolkit::saga;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct ShipOrder {
        hold: i64,
    }

    impl Event for ShipOrder {
        const TOPIC: &'static str = "ship";
        const KIND: &'static str = "order.ship";
    }

    async fn ship(tx: &mut Tx, order: ShipOrder, received: &Received) -> Result<(), HandlerError> {
        let insert = "INSERT INTO parcel (hold) VALUES ($1) RETURNING id";
        let parcel: i64 = sqlx::query_scalar(insert).bind(order.hold).fetch_one(&mut **tx).await?;
        let mut reply = NewMessage::new("checkout-replies").kind("order.shipped").json(&parcel);
        for name in [saga::KEY_HEADER, saga::TOKEN_HEADER] {                          // outbox_toolkit::saga
            let value = received.headers.get(name).ok_or_else(|| HandlerError::reject("not from a saga"))?;
            reply = reply.header(name, value);
        }
        tx.enqueue(reply).await?;                                                     // one transaction with the effect
        Ok(())
    }

    fn build(inbox: Inbox<Postgres>) {
        drop(Consumer::builder(inbox, "shipping").outbox(Outbox::new()).on(ship));
    }
}
