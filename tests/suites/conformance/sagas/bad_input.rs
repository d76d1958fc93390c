//! Mistakes in the code of a saga: each stops the saga with a clear error, and loses nothing.

use super::*;
use saga::{Run, Stop};

tests::cases! { "saga/bad_input/{on}/{case}":
    every {
        a_name_used_twice_is_stuck,
        a_name_that_cannot_be_used_is_stuck,
        a_result_that_no_longer_fits_is_stuck,
        a_result_that_cannot_be_read_back_commits_nothing,
        an_input_that_no_longer_fits_is_stuck,
        a_step_that_changes_its_kind_is_stuck,
        a_panic_of_a_step_is_a_failure,
        a_panic_of_an_undo_is_a_failure,
        a_panic_of_code_that_unwraps_a_pause_is_ignored,
        a_call_that_the_code_lost_is_not_forgotten,
    }
}

/// Runs one saga until it is stuck. Returns the error.
async fn stuck_with<DB: Tables>(db: &Database<DB>, builder: SagasBuilder<DB>, input: i64) -> String {
    let sagas = builder.open().await.unwrap();
    // It may exist, written by other code.
    let _ = started(db, &sagas, "a", input).await;
    let worker = Worker::of(&sagas);
    let told = stuck(&sagas, "a").await;
    worker.stop().await;
    told
}

async fn a_name_used_twice_is_stuck<DB: Tables>(db: Database<DB>) {
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        for item in 0..2 {
            saga.step("reserve", async |tx| Ok(DB::apply(tx, format!("item {item}")).await?)).await?;
        }
        Ok(())
    });
    let told = stuck_with(&db, builder, 0).await;
    assert!(told.contains("the step reserve occurs twice"), "{told}");
    assert_eq!(effects(&db).await, ["item 0"], "what was done stays");
}

async fn a_name_that_cannot_be_used_is_stuck<DB: Tables>(db: Database<DB>) {
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("a/b", async |_| Ok(())).await
    });
    let told = stuck_with(&db, builder, 0).await;
    assert!(told.contains("\"a/b\"") && told.contains("the character '/'"), "{told}");
}

/// Runs a saga with one step and a pause.
async fn step_then_pause<DB: Tables>(db: &Database<DB>) {
    let code = sagas(db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |_| Ok(String::from("s3cret"))).await?;
        saga.sleep("pause", Duration::from_secs(3_600)).await
    });
    let (old, worker) = begun(db, code, 7).await;
    until(&old, "a", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    worker.stop().await;
    db.execute(DB::NOW).await.unwrap();
}

async fn a_result_that_no_longer_fits_is_stuck<DB: Tables>(db: Database<DB>) {
    step_then_pause(&db).await;
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let number: i64 = saga.step("one", async |_| Ok(1)).await?;
        saga.sleep("pause", Duration::from_secs(3_600)).await?;
        Ok(number)
    });
    let told = stuck_with(&db, builder, 7).await;
    assert!(told.contains("the step one no longer fits") && told.contains("i64"), "{told}");
    assert!(!told.contains("s3cret"), "no value is told: {told}");
    let kept = db.texts("SELECT result FROM saga_step WHERE name = 'one'").await.unwrap();
    assert_eq!(kept, ["\"s3cret\""]);
}

/// JSON has no NaN, so it is written as null.
async fn a_result_that_cannot_be_read_back_commits_nothing<DB: Tables>(db: Database<DB>) {
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let share = async |tx: &mut outbox::OutboxTransaction<DB>| {
            DB::apply(tx, "shared".to_owned()).await?;
            Ok(f64::NAN)
        };
        saga.step("share", share).await
    });
    let told = stuck_with(&db, builder, 7).await;
    assert!(told.contains("share cannot be read back") && told.contains("f64"), "{told}");
    assert!(effects(&db).await.is_empty(), "nothing was committed");
}

async fn an_input_that_no_longer_fits_is_stuck<DB: Tables>(db: Database<DB>) {
    step_then_pause(&db).await;
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |_: &mut Run<DB>, input: String| Ok::<_, Stop>(input))
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("its input does not fit"), "{told}");
    worker.stop().await;
}

async fn a_step_that_changes_its_kind_is_stuck<DB: Tables>(db: Database<DB>) {
    step_then_pause(&db).await;
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.call("one", async |_| Ok(String::from("called"))).await
    });
    let told = stuck_with(&db, builder, 7).await;
    assert!(told.contains("the step one began as a step and is a call now"), "{told}");
}

async fn a_panic_of_a_step_is_a_failure<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step::<(), _, _>("one", async |tx| {
            DB::apply(tx, String::from("never")).await?;
            panic!("expected by a test, {}", counter.up())
        })
        .await
    });
    let told = stuck_with(&db, builder, 0).await;
    assert!(told.contains("panicked: expected by a test, 3"), "{told}");
    assert_eq!(effects(&db).await, [""; 0]);
}

async fn a_panic_of_code_that_unwraps_a_pause_is_ignored<DB: Tables>(db: Database<DB>) {
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step::<(), _, _>("one", async |_| Err(StepError::retry("the bank is away"))).await.unwrap();
        Ok(())
    });
    let told = stuck_with(&db, builder, 0).await;
    assert_eq!(told, "one: the bank is away");
}

async fn a_panic_of_an_undo_is_a_failure<DB: Tables>(db: Database<DB>) {
    let builder = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?))
            .undo(async |_, (): &()| panic!("expected by a test"))
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let told = stuck_with(&db, builder, 0).await;
    assert!(told.contains("panicked: expected by a test"), "{told}");
    assert_eq!(effects(&db).await, ["one"]);
}

async fn a_call_that_the_code_lost_is_not_forgotten<DB: Tables>(db: Database<DB>) {
    let vanish: saga::Hook =
        Arc::new(|_, place| Box::pin(async move { place == saga::crash_points::AFTER_CALL }));
    let bank = Bank::default();
    let here = bank.clone();
    let code = sagas(&db).hook(vanish).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        saga.call("charge", async |key| here.charge(key, cents).await).await
    });
    let (_, worker) = begun(&db, code, 7).await;
    eventually("the call", async || Ok((bank.account("checkout/a/charge").charges == 1).then_some(())))
        .await
        .unwrap();
    worker.stop().await;
    db.execute(DB::NOW).await.unwrap();
    let builder = sagas(&db).saga("checkout", 1, async move |_: &mut Run<DB>, _: i64| Ok::<_, Stop>(()));
    let told = stuck_with(&db, builder, 7).await;
    assert!(told.contains("without the call charge, whose outcome is unknown"), "{told}");
}
