//! Tests that a saga is run with every fault, and that violations are found.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use outbox::NewMessage;
use saga::{Run, StepError, Stop};
use sqlx::Sqlite;
use testkit::sagas::everywhere;

const ACCOUNT: &str = "CREATE TABLE account (cents INTEGER NOT NULL); INSERT INTO account VALUES (100)";

/// An external service that honours keys.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<HashSet<String>>>);

/// Takes money here and at the bank. Gives it back if the other side does not accept.
async fn transfer(saga: &mut Run<Sqlite>, cents: i64, bank: &Bank) -> Result<bool, Stop> {
    saga.step("take", async |tx| {
        sqlx::query("UPDATE account SET cents = cents - $1").bind(cents).execute(&mut **tx).await?;
        tx.enqueue(NewMessage::new("statements").payload("taken")).await?;
        Ok(())
    })
    .undo(async |tx, (): &()| {
        sqlx::query("UPDATE account SET cents = cents + $1").bind(cents).execute(&mut **tx).await?;
        tx.enqueue(NewMessage::new("statements").payload("given back")).await?;
        Ok(())
    })
    .await?;
    saga.call("charge", async |key| {
        bank.0.lock().map_err(|_| StepError::stop("poisoned"))?.insert(key.to_string());
        Ok(())
    })
    .undo(async |key, _: Option<&()>| {
        bank.0.lock().map_err(|_| StepError::stop("poisoned"))?.remove(&key.to_string());
        Ok(())
    })
    .await?;
    saga.sleep("pause", std::time::Duration::from_secs(60)).await?;
    let is_accepted: bool = saga.request("accept", NewMessage::new("offers").payload("?")).await?;
    if is_accepted { Ok(true) } else { Err(Stop::because("not accepted")) }
}

#[tokio::test]
async fn every_end_is_the_undisturbed_one() {
    for (is_accepted, left) in [(true, 70), (false, 100)] {
        let bank = Bank::default();
        let run = async move |saga: &mut Run<Sqlite>, cents: i64| transfer(saga, cents, &bank).await;
        let met = everywhere(run, 30)
            .setup(ACCOUNT)
            .reply("accept", &is_accepted)
            .check(move |pool| async move {
                let cents: i64 = sqlx::query_scalar("SELECT cents FROM account")
                    .fetch_one(&pool)
                    .await
                    .map_err(|error| error.to_string())?;
                if cents == left { Ok(()) } else { Err(format!("{cents} cents instead of {left}")) }
            })
            .await
            .unwrap();
        assert!(met >= 15, "only {met} faults were met");
    }
}

#[tokio::test]
async fn an_effect_outside_of_a_step_is_found() {
    let effects = Arc::new(Mutex::new(0));
    let told = everywhere(
        async move |saga: &mut Run<Sqlite>, _: i64| {
            // This code is wrong: it runs again in every run of the saga.
            let many = {
                let mut effects = effects.lock().unwrap();
                *effects += 1;
                *effects
            };
            saga.step("one", async |_| Ok(())).await?;
            Ok::<i32, Stop>(many)
        },
        0,
    )
    .await
    .unwrap_err()
    .to_string();
    assert!(told.contains("outputs differ"), "{told}");
}
