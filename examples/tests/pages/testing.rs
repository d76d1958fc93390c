//! The code of `docs/testing.md`.

use async_trait::async_trait;
use examples::setting::Failure;
use inbox::{Handler, HandlerError, Tx};
use message::Message;
use outbox::{NewMessage, Outbox};
use saga::{Run, Stop};
use serde::{Deserialize, Serialize};
use sqlx::{Pool, Sqlite};
use testkit::World;

struct Credit;

#[async_trait]
impl Handler<Sqlite> for Credit {
    async fn handle(&self, tx: &mut Tx<Sqlite>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let cents: i64 = serde_json::from_slice(&message.payload)?;
        let credit = "INSERT INTO account (id, cents) VALUES (7, $1)
            ON CONFLICT (id) DO UPDATE SET cents = cents + excluded.cents";
        sqlx::query(credit).bind(cents).execute(&mut **tx).await?;
        Ok(None)
    }
}

async fn pay(pool: &Pool<Sqlite>, outbox: &Outbox<Sqlite>, account: i64, cents: i64) -> Result<(), Failure> {
    let mut tx = outbox.begin(pool).await?;
    tx.enqueue(NewMessage::new("payments").key(format!("account-{account}")).json(&cents)).await?;
    Ok(tx.commit().await?)
}

#[tokio::test]
async fn a_payment_is_credited_once() -> Result<(), Failure> {
    let world = World::new().await?;
    world.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)").await?;
    world.consumer("wallet", "payments", Credit).copies(2).start()?; // each gets every message, at the same time
    world.broker().faults().lose_settlements(1);                     // an acknowledgement never arrives
    pay(world.pool(), world.outbox(), 7, 100).await?;                // your producer
    world.assert_promises_kept().await;
    assert_eq!(world.number("SELECT cents FROM account WHERE id = 7").await?, 100);
    Ok(())
}

#[derive(Clone, Serialize, Deserialize)]
struct PlaceOrder {
    item: i64,
}

async fn checkout(saga: &mut Run<Sqlite>, order: PlaceOrder, bank: &Bank) -> Result<i64, Stop> {
    let Bank = bank;
    saga.step("reserve", async |tx| {
        let reserve = "UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0";
        sqlx::query(reserve).bind(order.item).execute(&mut **tx).await?;
        Ok(())
    })
    .await?;
    saga.request("ship", NewMessage::new("ship").json(&order)).await
}

#[derive(Clone)]
struct Bank;

async fn money_adds_up(pool: &Pool<Sqlite>) -> Result<(), String> {
    let free = sqlx::query_scalar("SELECT free FROM stock").fetch_one(pool).await;
    match free.map_err(|error| error.to_string())? {
        0 => Ok(()),
        free => Err(format!("{free} are left")),
    }
}

#[tokio::test]
async fn a_saga_ends_like_the_undisturbed_one() -> Result<(), Failure> {
    let (bank, order, parcel) = (Bank, PlaceOrder { item: 7 }, 12);
    let run = async move |saga: &mut Run<Sqlite>, order: PlaceOrder| checkout(saga, order, &bank).await;
    testkit::sagas::everywhere(run, order)
        .setup("CREATE TABLE stock (item INTEGER, free INTEGER); INSERT INTO stock VALUES (7, 1)")
        .reply("ship", &parcel)
        .check(async |pool| money_adds_up(&pool).await)      // with captures: move |pool| async move { … }
        .await?;
    Ok(())
}
