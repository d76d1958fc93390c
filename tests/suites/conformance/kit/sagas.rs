//! Sagas are run with every fault, and violations are found.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use outbox::NewMessage;
use saga::{Run, SagaFunction, StepError, Stop};
use sqlx::{Postgres, Sqlite};
use testkit::sagas::{Everywhere, everywhere, everywhere_on};
use tests::{Failure, Outcome};

use super::{Kit, add};

tests::cases! { "kit/sagas/{on}/{case}":
    databases { an_effect_outside_of_a_step_is_found }
    // It creates the tables of many runs, which takes a minute on PostgreSQL.
    night postgres { every_end_is_the_undisturbed_one = every_end_is_the_undisturbed_one::<Postgres> }
    sqlite { every_end_is_the_undisturbed_one = every_end_is_the_undisturbed_one::<Sqlite> }
}

const COUNTER: &str = "CREATE TABLE counter (n bigint NOT NULL); INSERT INTO counter VALUES (100)";

/// Runs a saga on a database.
trait Sagas: Kit {
    fn everywhere<F, O>(function: F, input: i64) -> Result<Everywhere<Self>, Failure>
    where
        F: for<'r> SagaFunction<'r, Self, i64, O> + Clone + Send + Sync + 'static,
        O: serde::Serialize + 'static;
}

impl Sagas for Postgres {
    fn everywhere<F, O>(function: F, input: i64) -> Result<Everywhere<Self>, Failure>
    where
        F: for<'r> SagaFunction<'r, Self, i64, O> + Clone + Send + Sync + 'static,
        O: serde::Serialize + 'static,
    {
        Ok(everywhere_on(testkit::postgres::url()?, function, input))
    }
}

impl Sagas for Sqlite {
    fn everywhere<F, O>(function: F, input: i64) -> Result<Everywhere<Self>, Failure>
    where
        F: for<'r> SagaFunction<'r, Self, i64, O> + Clone + Send + Sync + 'static,
        O: serde::Serialize + 'static,
    {
        Ok(everywhere(function, input))
    }
}

/// An external service that honours keys.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<HashSet<String>>>);

/// Takes money here and at the bank. Gives it back if the other side does not accept.
async fn transfer<DB: Sagas>(saga: &mut Run<DB>, cents: i64, bank: &Bank) -> Result<bool, Stop> {
    saga.step("take", async |tx| {
        add::<DB>(&mut **tx, -cents).await?;
        tx.enqueue(NewMessage::new("statements").payload("taken")).await?;
        Ok(())
    })
    .undo(async |tx, (): &()| {
        add::<DB>(&mut **tx, cents).await?;
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

async fn every_end_is_the_undisturbed_one<DB: Sagas>() -> Outcome {
    for (is_accepted, left) in [(true, 70), (false, 100)] {
        let bank = Bank::default();
        let run = async move |saga: &mut Run<DB>, cents: i64| transfer(saga, cents, &bank).await;
        let met = DB::everywhere(run, 30)?
            .setup(COUNTER)
            .reply("accept", &is_accepted)
            .check(move |pool| async move {
                let mut connection = pool.acquire().await.map_err(|error| error.to_string())?;
                let found = DB::integers(&mut connection, "SELECT n FROM counter").await;
                let found = found.map_err(|error| error.to_string())?;
                if found == [left] { Ok(()) } else { Err(format!("{found:?} cents instead of {left}")) }
            })
            .await?;
        assert!(met >= 15, "only {met} faults were met");
    }
    Ok(())
}

async fn an_effect_outside_of_a_step_is_found<DB: Sagas>() -> Outcome {
    let effects = Arc::new(Mutex::new(0));
    let told = DB::everywhere(
        async move |saga: &mut Run<DB>, _: i64| {
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
    )?
    .await
    .unwrap_err()
    .to_string();
    assert!(told.contains("outputs differ"), "{told}");
    Ok(())
}
