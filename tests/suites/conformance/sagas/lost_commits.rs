//! Commits of a worker that a crash of the database, or the promotion of a lagging standby, reverts
//! while the worker continues.

use super::workers::{by, paused_at};
use super::*;
use saga::{Run, crash_points};

tests::cases! { "saga/lost_commits/{on}/{case}":
    every {
        a_claim_that_was_taken_back_is_not_the_next_one,
        an_undo_is_not_recorded_when_its_decision_was_taken_back,
    }
}

/// Goal: a worker whose claim was reverted neither changes nor releases the saga of the next
/// worker, whose claim has the same epoch. Oracle: the effects, while the next worker has not begun
/// its step, and after it.
async fn a_claim_that_was_taken_back_is_not_the_next_one<DB: Tables>(db: Database<DB>) {
    // While it is paused, it cannot claim the saga again.
    let alone = || fast().concurrency(1.try_into().unwrap());
    let (hook, is_there, go_on) = paused_at(crash_points::AFTER_CLAIM);
    let (_, first) = begun(&db, by(&db, "the first").options(alone()).hook(hook), 0).await;
    is_there.notified().await;
    db.execute("UPDATE saga SET epoch = epoch - 1, worker = NULL").await.unwrap();
    db.execute(DB::NOW).await.unwrap();
    let (hook, next_is_there, next_goes_on) = paused_at(crash_points::AFTER_CLAIM);
    let next = by(&db, "the next").options(alone()).hook(hook).open().await.unwrap();
    let worker = Worker::of(&next);
    next_is_there.notified().await;
    let claimed = show(&next, "a").await.0;
    go_on.notify_one();
    // A worker that is stopped at once does not reach its step.
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.stop().await;
    let meanwhile = (effects(&db).await, show(&next, "a").await.0);
    next_goes_on.notify_one();
    let after = ended(&next, "a").await;
    worker.stop().await;
    assert_eq!(claimed.outline.epoch, 1, "the epoch of the claim that was taken back");
    assert_eq!(meanwhile, (Vec::new(), claimed));
    assert_eq!(after.output.as_deref(), Some("\"the next\""), "{after:?}");
    assert_eq!(effects(&db).await, ["one by the next"]);
}

/// Goal: if the decision to undo is reverted while a call is undone, the saga does not continue
/// with the undo on record. Oracle: the undo is repeated after the saga has stopped again.
async fn an_undo_is_not_recorded_when_its_decision_was_taken_back<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let here = bank.clone();
    let (hook, is_there, go_on) = paused_at(crash_points::AFTER_UNDO_CALL);
    let code = sagas(&db).hook(hook).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        saga.call("charge", async |key| here.charge(key, cents).await)
            .undo(async |key, _: Option<&i64>| here.refund(key).await)
            .await?;
        saga.step("ship", async |_| Err::<(), _>(StepError::stop("sold out"))).await
    });
    let (sagas, worker) = begun(&db, code, 7).await;
    is_there.notified().await;
    db.execute("UPDATE saga SET state = 'running', reason = NULL").await.unwrap();
    go_on.notify_one();
    let again = tokio::time::timeout(Duration::from_mins(4), is_there.notified()).await;
    go_on.notify_one();
    let saga = ended(&sagas, "a").await;
    worker.stop().await;
    assert!(again.is_ok(), "the undo was not made again: {saga:?}");
    assert_eq!((saga.outline.state, saga.outline.reason.as_deref()), (State::Undone, Some("sold out")));
    assert_eq!(bank.account("checkout/a/charge"), Account { charges: 1, refunds: 2, cents: 0 });
}
