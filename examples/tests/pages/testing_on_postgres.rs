//! The code of `docs/testing.md` for services on PostgreSQL.

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Tx};
use message::Message;
use outbox::NewMessage;
use saga::{Run, Stop};
use sqlx::Postgres;
use testkit::World;

/// Anything that goes wrong.
type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Credit;

#[async_trait]
impl Handler<Postgres> for Credit {
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let paid: serde_json::Value = serde_json::from_slice(&message.payload)?;
        let credit = "INSERT INTO account SELECT * FROM jsonb_to_record($1) AS paid (id bigint, cents bigint)
            ON CONFLICT (id) DO UPDATE SET cents = account.cents + excluded.cents";
        sqlx::query(credit).bind(paid).execute(&mut **tx).await?;
        Ok(None)
    }
}

pub(crate) async fn a_payment_is_credited_once() -> Result<(), Failure> {

    let world = World::postgres(testkit::postgres::url()?).await?;   // the URL in OUTBOX_POSTGRES_URL
    world.execute("CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL)").await?;
    world.consumer("wallet", "payments", Credit).copies(2).start()?;
    world.broker().faults().lose_settlements(1);
    world.enqueue([NewMessage::new("payments").key("account-7").payload(r#"{"id": 7, "cents": 100}"#)]).await?;
    world.assert_promises_kept().await;
    assert_eq!(world.number("SELECT cents FROM account WHERE id = 7").await?, 100);

    Ok(())
}

async fn checkout(saga: &mut Run, item: i64) -> Result<i64, Stop> {
    saga.step("reserve", async |tx| {
        let reserve = "UPDATE stock SET free = free - 1 WHERE item = $1 AND free > 0";
        sqlx::query(reserve).bind(item).execute(&mut **tx).await?;
        Ok(())
    })
    .await?;
    saga.request("ship", NewMessage::new("ship").json(&item)).await
}

pub(crate) async fn a_saga_ends_like_the_undisturbed_one() -> Result<(), Failure> {

    testkit::sagas::everywhere_on(testkit::postgres::url()?, checkout, 7)
        .setup("CREATE TABLE stock (item bigint, free bigint); INSERT INTO stock VALUES (7, 1)")
        .reply("ship", &12)
        .await?;

    Ok(())
}
