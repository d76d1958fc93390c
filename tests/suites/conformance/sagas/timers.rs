//! Timers: they fire once, under the epoch, by the database's clock.

use super::*;
use saga::{Run, SPAN_MAX};

tests::cases! { "saga/timers/{on}/{case}":
    every {
        a_pause_holds_no_process_and_ends_once,
        a_pause_that_is_over_at_once_goes_on,
        a_century_is_accepted_and_more_is_refused,
        a_pause_that_is_woken_too_early_waits_on,
        sagas_that_a_clock_ahead_has_postponed_are_woken,
        a_long_pause_of_another_process_is_kept,
    }
}

async fn a_pause_holds_no_process_and_ends_once<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.sleep("pause", Duration::from_secs(3_600)).await?;
            saga.step("after", async |tx| Ok(DB::apply(tx, String::from("after")).await?)).await
        })
        .open()
        .await
        .unwrap();
    start(&db, &sagas, "a", 0).await;
    let workers = [Worker::of(&sagas), Worker::of(&sagas)];
    let saga = until(&sagas, "a", "asleep", |saga| {
        saga.outline.worker.is_none() && saga.outline.waits_for.is_some()
    })
    .await;
    let wait = saga.outline.wake_at.unwrap() - saga.outline.started_at;
    assert!((3_599..=3_660).contains(&wait.whole_seconds()), "{wait}");
    db.execute(DB::NOW).await.unwrap();
    finished(&sagas, "a").await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(effects(&db).await, ["after"]);
}

async fn a_pause_that_is_over_at_once_goes_on<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.sleep("none", Duration::ZERO).await?;
        saga.sleep("short", Duration::from_millis(30)).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    finished(&sagas, "a").await;
    worker.stop().await;
}

async fn a_century_is_accepted_and_more_is_refused<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, more: i64| {
            let longer = if more == 2 { Duration::MAX } else { SPAN_MAX + Duration::from_secs(86_400) };
            saga.sleep("pause", if more == 0 { SPAN_MAX } else { longer }).await
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    start(&db, &sagas, "century", 0).await;
    let saga = until(&sagas, "century", "asleep", |saga| {
        saga.outline.worker.is_none() && saga.outline.waits_for.is_some()
    })
    .await;
    assert_eq!((saga.outline.wake_at.unwrap() - saga.outline.started_at).whole_days(), 36_525);
    for (name, more) in [("more", 1), ("for ever", 2)] {
        let name = name.replace(' ', "-");
        start(&db, &sagas, &name, more).await;
        let told = stuck(&sagas, &name).await;
        assert!(told.contains("the longest time is 36525 days"), "{told}");
    }
    worker.stop().await;
}

async fn a_pause_that_is_woken_too_early_waits_on<DB: Tables>(db: Database<DB>) {
    let runs = Counter::default();
    let counter = runs.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        counter.up();
        saga.sleep("pause", Duration::from_secs(3_600)).await?;
        saga.step("after", async |tx| Ok(DB::apply(tx, String::from("after")).await?)).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    until(&sagas, "a", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    let early = "UPDATE saga SET wake_at = started_at";
    db.execute(early).await.unwrap();
    let asleep = |saga: &SagaRecord| saga.outline.epoch == 2 && saga.outline.worker.is_none();
    until(&sagas, "a", "asleep again", asleep).await;
    assert_eq!((runs.get(), effects(&db).await.len()), (2, 0));
    worker.stop().await;
}

/// Goal: sagas that started, failed or lost their worker while the server's clock was days ahead
/// continue once the clock is right, and no other saga wakes early. Oracle: the sagas that are due
/// after a pass.
async fn sagas_that_a_clock_ahead_has_postponed_are_woken<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, is_long: i64| {
            if is_long == 1 {
                saga.sleep("pause", Duration::from_secs(30 * 86_400)).await?;
            }
            saga.step("after", async |tx| Ok(DB::apply(tx, String::from("after")).await?)).await
        })
        .open()
        .await
        .unwrap();
    start(&db, &sagas, "long", 1).await;
    let worker = Worker::of(&sagas);
    until(&sagas, "long", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    worker.stop().await;
    for name in ["started", "held"] {
        start(&db, &sagas, name, 0).await;
    }
    db.execute("UPDATE saga SET worker = 'gone' WHERE id = 'held'").await.unwrap();
    assert_eq!(sagas.wake_stranded().await.unwrap(), 0, "no clock was wrong");
    db.execute(DB::AHEAD).await.unwrap();
    assert_eq!(sagas.wake_stranded().await.unwrap(), 2);
    assert_eq!(sagas.wake_stranded().await.unwrap(), 0);
    let (long, _) = show(&sagas, "long").await;
    assert_eq!((long.outline.wake_at.unwrap() - long.outline.started_at).whole_days(), 32, "it sleeps on");
    let (held, _) = show(&sagas, "held").await;
    let wait = held.outline.wake_at.unwrap() - held.outline.started_at;
    assert!((3_599..=3_660).contains(&wait.whole_seconds()), "as if its worker had just renewed it: {wait}");
    let worker = Worker::of(&sagas);
    finished(&sagas, "started").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["after"]);
}

/// Goal: a saga that failed in a process with longer pauses is not retried early by a process with
/// shorter ones, and is still woken when a clock was ahead. Oracle: the sagas that a pass wakes.
async fn a_long_pause_of_another_process_is_kept<DB: Tables>(db: Database<DB>) {
    let mut options = fast();
    options.attempts_max = 1_000_000;
    let code = sagas(&db).options(options).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("pay", async |_| Err::<i64, _>(StepError::retry("the bank is away"))).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    until(&sagas, "a", "failed", |saga| saga.outline.attempts > 0).await;
    worker.stop().await;
    let (failed, _) = show(&sagas, "a").await;
    assert!(failed.outline.worker.is_none() && failed.outline.error.is_some(), "{failed:?}");
    // A process whose backoff grows to six hours can postpone it this far.
    db.execute(DB::HOURS_AHEAD).await.unwrap();
    assert_eq!(sagas.wake_stranded().await.unwrap(), 0);
    db.execute(DB::AHEAD).await.unwrap();
    assert_eq!(sagas.wake_stranded().await.unwrap(), 1);
}
