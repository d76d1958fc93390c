//! Calls of other services: one key for all attempts, and outcomes that may stay unknown.

use super::*;
use saga::{Retry, Run, StepState};

tests::cases! { "saga/calls/{on}/{case}":
    every {
        a_call_goes_along_with_its_key_and_is_stored,
        a_call_whose_worker_is_gone_is_made_again_under_its_key,
        a_call_is_announced_before_it_is_made,
        a_call_that_is_given_up_is_undone,
        a_call_that_was_refused_at_once_is_not_undone,
        a_call_without_a_policy_is_stuck_after_the_limit,
    }
}

async fn a_call_goes_along_with_its_key_and_is_stored<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let here = bank.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        let key = saga.key("charge").to_string();
        let charged: i64 = saga.call("charge", async |key| here.charge(key, cents).await).await?;
        saga.sleep("pause", Duration::ZERO).await?;
        Ok((key, charged))
    });
    let (sagas, worker) = begun(&db, code, 1250).await;
    assert_eq!(finished(&sagas, "a").await, "[\"checkout/a/charge\",1250]");
    worker.stop().await;
    assert_eq!(bank.account("checkout/a/charge"), Account { charges: 1, refunds: 0, cents: 1250 });
}

async fn a_call_whose_worker_is_gone_is_made_again_under_its_key<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let vanish = Counter::default();
    let hook: saga::Hook = Arc::new(move |_, place| {
        let vanishes = place == saga::crash_points::AFTER_CALL && vanish.up() == 1;
        Box::pin(async move { vanishes })
    });
    let here = bank.clone();
    let code = sagas(&db).hook(hook).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        saga.call("charge", async |key| here.charge(key, cents).await).await
    });
    let (sagas, worker) = begun(&db, code, 5).await;
    eventually("the worker is gone", async || {
        Ok((bank.account("checkout/a/charge").charges == 1).then_some(()))
    })
    .await
    .unwrap();
    let (_, steps) = show(&sagas, "a").await;
    assert_eq!(steps[0].state, StepState::Calling, "its outcome is unknown");
    db.execute(DB::NOW).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "5");
    worker.stop().await;
    assert_eq!(bank.account("checkout/a/charge").charges, 2, "again, under the same key");
    assert_eq!(show(&sagas, "a").await.1[0].attempts, 2);
}

async fn a_call_is_announced_before_it_is_made<DB: Tables>(db: Database<DB>) {
    let there = db.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let look = "SELECT state FROM saga_step WHERE name = 'charge'";
        let seen: Vec<String> = saga
            .call("charge", async |_| {
                there.texts(look).await.map_err(|error| StepError::stop(error.to_string()))
            })
            .await?;
        Ok(seen)
    });
    let (sagas, worker) = begun(&db, code, 5).await;
    assert_eq!(finished(&sagas, "a").await, "[\"calling\"]", "another connection sees it");
    worker.stop().await;
}

async fn a_call_that_is_given_up_is_undone<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let here = bank.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        saga.call("charge", async |key| {
            here.charge(key, cents).await?;
            Err::<i64, _>(StepError::retry("the answer was lost"))
        })
        .undo(async |key, charge: Option<&i64>| {
            assert_eq!(charge, None, "nobody knows it");
            here.refund(key).await
        })
        .retry(Retry::times(4).within(Duration::from_secs(60)))
        .await
    });
    let (sagas, worker) = begun(&db, code, 5).await;
    let reason = undone(&sagas, "a").await;
    assert!(
        reason.contains("abandoned after 4 attempts") && reason.contains("the answer was lost"),
        "{reason}"
    );
    worker.stop().await;
    assert_eq!(bank.account("checkout/a/charge"), Account { charges: 4, refunds: 1, cents: 0 });
}

async fn a_call_that_was_refused_at_once_is_not_undone<DB: Tables>(db: Database<DB>) {
    let (bank, tries) = (Bank::default(), Counter::default());
    let (here, counter) = (bank.clone(), tries.clone());
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, fails_first: i64| {
            let (counter, here) = (counter.clone(), here.clone());
            saga.call("charge", async |key| match (fails_first, counter.up()) {
                (1, 2) => Err(StepError::retry("the answer was lost")),
                _ => {
                    here.change(&key.to_string(), |account| account.charges += 1);
                    Err::<i64, _>(StepError::stop("no such card"))
                }
            })
            .undo(async |key, _: Option<&i64>| here.refund(key).await)
            .await
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    start(&db, &sagas, "known", 0).await;
    assert_eq!(undone(&sagas, "known").await, "no such card");
    start(&db, &sagas, "unknown", 1).await;
    assert_eq!(undone(&sagas, "unknown").await, "no such card");
    worker.stop().await;
    assert_eq!(bank.account("checkout/known/charge").refunds, 0, "nothing happened");
    assert_eq!(bank.account("checkout/unknown/charge").refunds, 1, "the first attempt may have happened");
}

async fn a_call_without_a_policy_is_stuck_after_the_limit<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.call("charge", async |_| Err::<i64, _>(StepError::retry("the bank is away"))).await
    });
    let (sagas, worker) = begun(&db, code, 5).await;
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("charge: the bank is away"), "{told}");
    worker.stop().await;
    assert_eq!(show(&sagas, "a").await.1[0].attempts, 3);
}
