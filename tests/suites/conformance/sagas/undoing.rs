//! Undoing: in reverse order, each step once.

use super::*;
use outbox::NewMessage;
use saga::{Run, Stop, UndoState};

tests::cases! { "saga/undoing/{on}/{case}":
    every {
        steps_are_undone_in_reverse_order_each_once,
        undo_and_its_record_and_message_commit_together,
        a_failing_undo_is_tried_again_and_then_stuck,
        an_undo_whose_commit_fails_is_tried_again_and_then_stuck,
        an_undo_that_cannot_be_done_is_stuck_at_once,
        a_step_that_the_code_lost_is_stuck_and_not_forgotten,
        while_it_is_undone_a_saga_is_stuck_at_the_undo_that_is_due,
    }
}

/// Runs three steps and a call, then stops with a reason.
async fn four_then_stop<DB: Tables>(saga: &mut Run<DB>, bank: &Bank) -> Result<(), Stop> {
    for name in ["one", "two"] {
        saga.step(name, async |tx| Ok(DB::apply(tx, name.to_owned()).await?))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, format!("undo {name}")).await?))
            .await?;
    }
    saga.step("plain", async |_| Ok(())).await.ok();
    Err(Stop::because(format!("the shop is closed, {}", bank.0.lock().unwrap().len())))
}

async fn steps_are_undone_in_reverse_order_each_once<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let here = bank.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        let first: String = saga
            .step("one", async |tx| {
                DB::apply(tx, String::from("one")).await?;
                Ok(String::from("hold-1"))
            })
            .undo(async |tx, hold: &String| Ok(DB::apply(tx, format!("undo {hold}")).await?))
            .await?;
        saga.step("two", async |_| Ok(())).await?;
        saga.call("charge", async |key| here.charge(key, cents).await)
            .undo(async |key, charge: Option<&i64>| {
                assert_eq!(charge, Some(&cents));
                here.refund(key).await
            })
            .await?;
        saga.step("three", async |tx| Ok(DB::apply(tx, format!("three after {first}")).await?))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, format!("undo three, {first}")).await?))
            .await?;
        Err::<(), _>(Stop::because("the shop is closed"))
    });
    let (sagas, worker) = begun(&db, code, 7).await;
    assert_eq!(undone(&sagas, "a").await, "the shop is closed");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "three after hold-1", "undo three, hold-1", "undo hold-1"]);
    assert_eq!(bank.account("checkout/a/charge"), Account { charges: 1, refunds: 1, cents: 0 });
    let undo: Vec<_> = show(&sagas, "a").await.1.iter().map(|step| step.undo).collect();
    assert_eq!(undo, [UndoState::Done, UndoState::None, UndoState::Done, UndoState::Done]);
}

async fn undo_and_its_record_and_message_commit_together<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |_| Ok(()))
            .undo(async |tx, (): &()| {
                DB::apply(tx, String::from("undo")).await?;
                tx.enqueue(NewMessage::new("stock").payload("released")).await?;
                match counter.up() {
                    1 | 2 => Err(StepError::retry("not yet")),
                    _ => Ok(()),
                }
            })
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    undone(&sagas, "a").await;
    worker.stop().await;
    assert_eq!((effects(&db).await, tries.get()), (vec![String::from("undo")], 3));
    assert_eq!(db.integer("SELECT count(*) FROM outbox_message").await.unwrap(), 1);
}

async fn a_failing_undo_is_tried_again_and_then_stuck<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("first", async |_| Ok(()))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo first")).await?))
            .await?;
        saga.step("one", async |_| Ok(()))
            .undo(async |_, (): &()| Err(StepError::retry("the shelf is gone")))
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("the undo of one") && told.contains("the shelf is gone"), "{told}");
    worker.stop().await;
    let saga = show(&sagas, "a").await.0;
    assert_eq!((saga.outline.state, saga.outline.attempts), (State::Undoing, 3));
    assert_eq!(effects(&db).await, [""; 0], "what came before it waits for it");
}

/// A deferred constraint is checked only at commit: the parcel of the refund does not exist.
async fn an_undo_whose_commit_fails_is_tried_again_and_then_stuck<DB: Tables>(db: Database<DB>) {
    db.execute("CREATE TABLE parcel (id bigint PRIMARY KEY)").await.unwrap();
    db.execute(
        "CREATE TABLE refund (parcel bigint NOT NULL REFERENCES parcel (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    .await
    .unwrap();
    db.let_use(Role::Service, "refund").await.unwrap();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?))
            .undo(async |tx, (): &()| {
                let refund = Template::new("INSERT INTO refund (parcel) VALUES (7)").render();
                Ok(Query::<DB>::new(&refund).run(tx).await.map(drop)?)
            })
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    stuck(&sagas, "a").await;
    worker.stop().await;
    let (saga, steps) = show(&sagas, "a").await;
    assert_eq!((saga.outline.attempts, steps[0].undo), (3, UndoState::Pending));
}

async fn an_undo_that_cannot_be_done_is_stuck_at_once<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |_| Ok(()))
            .undo(async |_, (): &()| {
                counter.up();
                Err(StepError::stop("the parcel has left"))
            })
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("the parcel has left"), "{told}");
    worker.stop().await;
    assert_eq!(tries.get(), 1);
}

async fn a_step_that_the_code_lost_is_stuck_and_not_forgotten<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        four_then_stop(saga, &Bank::default()).await.ok();
        saga.sleep("pause", Duration::from_secs(3_600)).await
    });
    let (old, worker) = begun(&db, code, 0).await;
    until(&old, "a", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    worker.stop().await;
    let new = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.step("one", async |_| Ok(()))
                .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo one")).await?))
                .await?;
            Err::<(), _>(Stop::because("closed"))
        })
        .open()
        .await
        .unwrap();
    db.execute(DB::NOW).await.unwrap();
    let worker = Worker::of(&new);
    let told = stuck(&new, "a").await;
    assert!(told.contains("the step two has to be undone"), "{told}");
    worker.stop().await;
    // With code that contains the step, the saga continues.
    let fixed = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| four_then_stop(saga, &bank).await)
        .open()
        .await
        .unwrap();
    let operator = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    operator.retry(&id("a"), &operators::alice()).await.unwrap();
    let worker = Worker::of(&fixed);
    undone(&fixed, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "two", "undo two", "undo one"]);
}

/// Goal: when the code cannot read the result of an earlier step, or panics before any undo, the
/// saga is stuck at the undo that is due. Then an operator skips exactly that undo. Oracle: which
/// undos ran.
async fn while_it_is_undone_a_saga_is_stuck_at_the_undo_that_is_due<DB: Tables>(db: Database<DB>) {
    let now = Arc::new(Mutex::new("stop"));
    let here = Arc::clone(&now);
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let now = *here.lock().unwrap();
        assert_ne!(now, "panic", "expected by a test");
        if now == "unreadable" {
            saga.step("one", async |_| Ok(String::new())).await?;
        }
        saga.step("one", async |_| Ok(1_i64))
            .undo(async |tx, _: &i64| Ok(DB::apply(tx, String::from("undo one")).await?))
            .await?;
        saga.step("two", async |_| Ok(()))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo two")).await?))
            .await?;
        saga.step("three", async |_| Ok(()))
            .undo(async |_, (): &()| Err(StepError::stop("the shelf is gone")))
            .await?;
        Err::<(), _>(Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let operator = operators::operator(&db).await;
    stuck(&sagas, "a").await;
    for code in ["unreadable", "panic"] {
        *now.lock().unwrap() = code;
        operator.retry(&id("a"), &operators::alice()).await.unwrap();
        let told = stuck(&sagas, "a").await;
        let expected = if code == "panic" { "panicked" } else { "result of the step one" };
        assert!(told.contains(expected), "{told}");
        assert_eq!(show(&sagas, "a").await.0.outline.waits_for.as_deref(), Some("three"), "{code}");
        operator.skip(&id("a"), "one", None, &operators::alice()).await.unwrap_err();
    }
    *now.lock().unwrap() = "stop";
    operator.skip(&id("a"), "three", None, &operators::alice()).await.unwrap();
    undone(&sagas, "a").await;
    worker.stop().await;
    let undo: Vec<_> = show(&sagas, "a").await.1.iter().map(|step| step.undo).collect();
    assert_eq!(undo, [UndoState::Done, UndoState::Done, UndoState::Skipped]);
    assert_eq!(effects(&db).await, ["undo two", "undo one"]);
}
