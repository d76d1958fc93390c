//! Workers that crash at any crash point, in any pass. Another worker continues, each step and each
//! undo happens once, and the money adds up.

use super::*;
use saga::{Run, Stop, UndoState, crash_points};

tests::cases! { "saga/crashes/{on}/{case}":
    every {
        a_worker_may_vanish_anywhere_while_a_saga_runs,
        a_worker_may_vanish_anywhere_while_a_saga_is_undone,
        two_workers_may_both_vanish_anywhere,
    }
}

/// Returns a hook that crashes workers at the places in the plan, each at the given pass.
fn vanishing(plan: Vec<(&'static str, u32)>, passed: &Counter) -> saga::Hook {
    let (passes, passed) = (Mutex::new(HashMap::<&'static str, u32>::new()), passed.clone());
    Arc::new(move |_, place| {
        let pass = {
            let mut passes = passes.lock().unwrap();
            let pass = passes.entry(place).or_default();
            *pass += 1;
            *pass
        };
        let vanishes = plan.contains(&(place, pass));
        if vanishes {
            passed.up();
        }
        Box::pin(async move { vanishes })
    })
}

/// A checkout: a reservation, a charge, a pause, a receipt. If the shop is closed, it is undone.
fn checkout<DB: Tables>(db: &Database<DB>, bank: &Bank, hook: saga::Hook) -> SagasBuilder<DB> {
    let bank = bank.clone();
    // The test also takes leases away from running workers, many times.
    let mut options = fast();
    options.attempts_max = 1_000;
    sagas(db).options(options).hook(hook).saga(
        "checkout",
        1,
        async move |saga: &mut Run<DB>, is_closed: i64| {
            let hold: i64 = saga
                .step("reserve", async |tx| {
                    DB::apply(tx, String::from("reserve")).await?;
                    tx.enqueue(outbox::NewMessage::new("stock").payload("reserve")).await?;
                    Ok(41)
                })
                .undo(async |tx, hold: &i64| {
                    tx.enqueue(outbox::NewMessage::new("stock").payload("release")).await?;
                    Ok(DB::apply(tx, format!("release {hold}")).await?)
                })
                .await?;
            saga.call("charge", async |key| bank.charge(key, hold + 1).await)
                .undo(async |key, _: Option<&i64>| bank.refund(key).await)
                .await?;
            saga.sleep("pause", Duration::ZERO).await?;
            saga.step("receipt", async |tx| Ok(DB::apply(tx, String::from("receipt")).await?))
                .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("void receipt")).await?))
                .await?;
            if is_closed == 1 { Err(Stop::because("closed")) } else { Ok(hold) }
        },
    )
}

/// Runs one saga to its end and checks the outcome. Returns whether a worker has crashed.
async fn judged<DB: Tables>(
    db: &Database<DB>,
    plan: Vec<(&'static str, u32)>,
    name: &str,
    is_closed: i64,
) -> bool {
    let (bank, vanished) = (Bank::default(), Counter::default());
    let told = format!("{plan:?}");
    let sagas = checkout(db, &bank, vanishing(plan, &vanished)).open().await.unwrap();
    db.execute("DELETE FROM effect").await.unwrap();
    let messages = db.integer("SELECT count(*) FROM outbox_message").await.unwrap();
    start(db, &sagas, name, is_closed).await;
    let workers = [Worker::of(&sagas), Worker::of(&sagas)];
    let saga = eventually(&format!("the end with {told}"), async || {
        let (saga, _) = show(&sagas, name).await;
        // The lease of the crashed worker ends.
        if vanished.get() > 0 && !saga.outline.state.has_ended() && saga.outline.worker.is_some() {
            db.execute(DB::NOW).await.unwrap();
        }
        Ok(saga.outline.state.has_ended().then_some(saga))
    })
    .await
    .unwrap();
    for worker in workers {
        worker.stop().await;
    }
    let account = bank.account(&format!("checkout/{name}/charge"));
    let (effects, steps) = (effects(db).await, show(&sagas, name).await.1);
    let sent = db.integer("SELECT count(*) FROM outbox_message").await.unwrap() - messages;
    assert_eq!(saga.outline.state, if is_closed == 1 { State::Undone } else { State::Finished }, "{told}");
    assert!(account.charges >= 1, "{told}");
    if is_closed == 1 {
        assert_eq!(effects, ["reserve", "receipt", "void receipt", "release 41"], "{told}");
        assert_eq!((account.cents, sent), (0, 2), "{told}");
        assert!(account.refunds >= 1 && steps.iter().all(|step| step.undo != UndoState::Pending), "{told}");
    } else {
        assert_eq!(effects, ["reserve", "receipt"], "{told}");
        assert_eq!((account.cents, account.refunds, sent), (42, 0, 1), "{told}");
    }
    vanished.get() > 0
}

async fn anywhere<DB: Tables>(db: &Database<DB>, is_closed: i64) -> usize {
    let mut met = 0;
    for (number, place) in crash_points::ALL.into_iter().enumerate() {
        for pass in 1..=3 {
            let name = format!("s-{number}-{pass}");
            met += usize::from(judged(db, vec![(place, pass)], &name, is_closed).await);
        }
    }
    met
}

async fn a_worker_may_vanish_anywhere_while_a_saga_runs<DB: Tables>(db: Database<DB>) {
    let met = anywhere(&db, 0).await;
    assert!(met >= 11, "only {met} crashes were met");
}

async fn a_worker_may_vanish_anywhere_while_a_saga_is_undone<DB: Tables>(db: Database<DB>) {
    let met = anywhere(&db, 1).await;
    assert!(met >= 16, "only {met} crashes were met");
}

async fn two_workers_may_both_vanish_anywhere<DB: Tables>(db: Database<DB>) {
    let places = crash_points::ALL;
    for (number, first) in places.into_iter().enumerate() {
        let second = places[(number * 5 + 3) % places.len()];
        let plan = vec![(first, 1), (second, 2), (crash_points::AFTER_CLAIM, 3)];
        judged(&db, plan, &format!("two-{number}"), i64::from(number % 2 == 0)).await;
    }
}
