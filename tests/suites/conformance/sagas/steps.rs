//! A step's effect, result, messages and progress commit together.

use super::*;
use inbox::HandlerError;
use outbox::{NewMessage, Rollback};
use saga::{Run, Stop};

tests::cases! { "saga/steps/{on}/{case}":
    every {
        effect_message_result_and_progress_commit_together,
        a_result_is_returned_on_every_later_run,
        steps_are_found_by_name_and_may_be_reordered,
        a_failure_is_tried_again_and_then_stuck,
        a_conflict_is_tried_again_and_not_counted,
        a_step_that_always_loses_a_conflict_is_counted_and_then_stuck,
        a_step_whose_transaction_was_ended_is_not_done,
        a_step_that_fails_as_an_outage_does_is_let_go_and_counted,
        a_refused_step_may_be_caught,
        a_refusal_of_a_shared_helper_undoes_the_saga,
        a_step_that_is_dropped_fails_the_run,
    }
}

async fn effect_message_result_and_progress_commit_together<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, input: i64| {
        let done: i64 = saga
            .step("reserve", async |tx| {
                DB::apply(tx, format!("reserve {input}")).await?;
                tx.enqueue(NewMessage::new("stock").payload("reserved")).await?;
                match counter.up() {
                    1 => Err(StepError::retry("the first try fails after its effect")),
                    _ => Ok(input * 2),
                }
            })
            .await?;
        Ok(done)
    });
    let (sagas, worker) = begun(&db, code, 21).await;
    assert_eq!(finished(&sagas, "a").await, "42");
    worker.stop().await;
    assert_eq!(tries.get(), 2);
    assert_eq!(effects(&db).await, ["reserve 21"]);
    assert_eq!(db.integer("SELECT count(*) FROM outbox_message").await.unwrap(), 1);
}

async fn a_result_is_returned_on_every_later_run<DB: Tables>(db: Database<DB>) {
    let (first, second) = (Counter::default(), Counter::default());
    let (one, two) = (first.clone(), second.clone());
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let number: u32 = saga.step("first", async |_| Ok(one.up())).await?;
        saga.step("second", async |tx| match two.up() {
            1 | 2 => Err(StepError::retry("not yet")),
            _ => Ok(DB::apply(tx, format!("with {number}")).await?),
        })
        .await?;
        Ok(number)
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    assert_eq!(finished(&sagas, "a").await, "1");
    worker.stop().await;
    assert_eq!((first.get(), second.get()), (1, 3), "the first ran once");
    assert_eq!(effects(&db).await, ["with 1"]);
}

async fn steps_are_found_by_name_and_may_be_reordered<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let a: i64 = saga.step("a", async |_| Ok(1)).await?;
        let b: i64 = saga.step("b", async |_| Ok(2)).await?;
        saga.sleep("pause", Duration::from_secs(3_600)).await?;
        Ok(a * 10 + b)
    });
    let (old, worker) = begun(&db, code, 0).await;
    until(&old, "a", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    worker.stop().await;
    let new = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.sleep("pause", Duration::from_secs(3_600)).await?;
            let b: i64 = saga.step("b", async |_| Err(StepError::stop("it has run"))).await?;
            let c: i64 = saga.step("c", async |_| Ok(3)).await?;
            let a: i64 = saga.step("a", async |_| Err(StepError::stop("it has run"))).await?;
            Ok(a * 100 + b * 10 + c)
        })
        .open()
        .await
        .unwrap();
    db.execute(DB::NOW).await.unwrap();
    let worker = Worker::of(&new);
    assert_eq!(finished(&new, "a").await, "123");
    worker.stop().await;
}

async fn a_failure_is_tried_again_and_then_stuck<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("before", async |tx| Ok(DB::apply(tx, String::from("before")).await?)).await?;
        saga.step::<(), _, _>("fails", async |tx| {
            counter.up();
            DB::apply(tx, String::from("never")).await?;
            Err(StepError::retry("the shelf is locked"))
        })
        .await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("fails") && told.contains("the shelf is locked"), "{told}");
    worker.stop().await;
    assert_eq!(tries.get(), 3, "as often as the options say");
    assert_eq!(effects(&db).await, ["before"], "nothing is lost, and nothing is undone");
    let saga = show(&sagas, "a").await.0;
    assert_eq!((saga.outline.state, saga.outline.attempts), (State::Running, 3));
}

async fn a_conflict_is_tried_again_and_not_counted<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("conflict", async |tx| {
            DB::apply(tx, String::from("once")).await?;
            if counter.up() <= 7 {
                return Err(outbox::EnqueueError::Concurrent { id: message::MessageId::new() }.into());
            }
            Ok(())
        })
        .await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    finished(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(tries.get(), 8);
    assert_eq!(effects(&db).await, ["once"]);
}

/// A lock that another session never releases must become visible to an operator.
async fn a_step_that_always_loses_a_conflict_is_counted_and_then_stuck<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let mut options = fast();
    options.attempts_max = 1;
    let code = sagas(&db).options(options).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step::<(), _, _>("hot", async |_| {
            counter.up();
            Err(outbox::EnqueueError::Concurrent { id: message::MessageId::new() }.into())
        })
        .await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let told = stuck(&sagas, "a").await;
    assert!(told.contains("hot") && told.contains("conflicted with other transactions"), "{told}");
    worker.stop().await;
    let saga = show(&sagas, "a").await.0;
    assert_eq!((saga.outline.attempts, saga.outline.waits_for.as_deref(), tries.get()), (1, Some("hot"), 20));
}

/// Goal: a step or an undo whose transaction was ended inside it fails, and leaves no record
/// without its effect. Oracle: the effects, each once.
async fn a_step_whose_transaction_was_ended_is_not_done<DB: Tables>(db: Database<DB>) {
    let tries = [Counter::default(), Counter::default()];
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, is_sql: bool| {
            let tries = &tries[usize::from(is_sql)];
            saga.step("reserve", async |tx| {
                DB::apply(tx, String::from("reserved")).await?;
                if tries.up() == 1 {
                    end::<DB>(tx, is_sql).await;
                }
                Ok(())
            })
            .undo(async |tx, (): &()| {
                DB::apply(tx, String::from("released")).await?;
                if tries.up() == 3 {
                    end::<DB>(tx, is_sql).await;
                }
                Ok(())
            })
            .await?;
            Err::<(), _>(Stop::because("closed"))
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    for (name, is_sql) in [("dropped", false), ("sql", true)] {
        let mut tx = Outbox::new().begin(&db.service).await.unwrap();
        assert_eq!(sagas.start(&mut tx, "checkout", name, &is_sql).await.unwrap(), Started::Started);
        tx.commit().await.unwrap();
        assert_eq!(undone(&sagas, name).await, "closed");
        assert_eq!(effects(&db).await, ["reserved", "released"], "{name}");
        db.execute("DELETE FROM effect").await.unwrap();
    }
    worker.stop().await;
}

/// Ends the transaction of a step, which a step must not do.
async fn end<DB: Tables>(connection: &mut DB::Connection, is_sql: bool) {
    if is_sql {
        DB::execute(connection, "ROLLBACK").await.unwrap();
    } else {
        tests::drop_a_begin(connection).await;
    }
}

/// Another database is down, or a statement always takes too long, while this database answers.
async fn a_step_that_fails_as_an_outage_does_is_let_go_and_counted<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let mut alone = fast();
    alone.concurrency = 1.try_into().unwrap();
    alone.attempts_max = 2;
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, is_away: i64| {
            let step = saga.step("one", async |tx| {
                if is_away == 1 {
                    counter.up();
                    return Err(sqlx::Error::PoolTimedOut.into());
                }
                Ok(DB::apply(tx, String::from("one")).await?)
            });
            step.await
        })
        .options(alone)
        .open()
        .await
        .unwrap();
    start(&db, &sagas, "away", 1).await;
    let worker = Worker::of(&sagas);
    let saga = until(&sagas, "away", "tried", |saga| saga.outline.worker.is_some()).await;
    assert_eq!(saga.outline.attempts, 0);
    start(&db, &sagas, "b", 0).await;
    finished(&sagas, "b").await;
    let told = stuck(&sagas, "away").await;
    assert!(told.contains("one: ") && told.contains("pool timed out"), "{told}");
    worker.stop().await;
    assert_eq!(tries.get(), 12, "one in six is counted");
    assert_eq!(effects(&db).await, ["one"]);
}

async fn a_refused_step_may_be_caught<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let card: Result<(), Stop> = saga
            .step("card", async |tx| {
                counter.up();
                DB::apply(tx, String::from("never")).await?;
                Err(StepError::stop("the card has expired"))
            })
            .await;
        let reason = card.unwrap_err().reason().to_owned();
        saga.sleep("pause", Duration::ZERO).await?;
        saga.step("invoice", async |tx| Ok(DB::apply(tx, String::from("invoice")).await?)).await?;
        Ok(reason)
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    assert_eq!(finished(&sagas, "a").await, "\"the card has expired\"");
    worker.stop().await;
    assert_eq!(tries.get(), 1, "a refusal is an outcome, and is stored");
    assert_eq!(effects(&db).await, ["invoice"]);
}

/// Goal: the refusals of handlers, transactions and sagas' functions are refusals in a step, too.
/// Oracle: the saga is undone with that reason, after one try.
async fn a_refusal_of_a_shared_helper_undoes_the_saga<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let counter = tries.clone();
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, kind: i64| {
            saga.step("reserve", async |tx| DB::apply(tx, String::from("reserved")).await)
                .undo(async |tx, (): &()| DB::apply(tx, String::from("released")).await)
                .await?;
            counter.up();
            match kind {
                0 => saga.step("pay", async |_| Err::<(), _>(Stop::because("sold out"))).await,
                1 => saga.step("pay", async |_| Err::<(), _>(Rollback::because("sold out"))).await,
                2 => saga.step("pay", async |_| Err::<(), _>(HandlerError::reject("sold out"))).await,
                _ => saga.call("pay", async |_: &StepKey| Err::<(), _>(Stop::because("sold out"))).await,
            }
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    for kind in 0..4 {
        let name = kind.to_string();
        start(&db, &sagas, &name, kind).await;
        assert_eq!(undone(&sagas, &name).await, "sold out", "{name}");
        assert_eq!(effects(&db).await, ["reserved", "released"], "{name}");
        db.execute("DELETE FROM effect").await.unwrap();
    }
    worker.stop().await;
    assert!(tries.get() <= 8, "once forward, and once to undo: {}", tries.get());
}

async fn a_step_that_is_dropped_fails_the_run<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let (counter, tries_so_far) = (tries.clone(), tries.clone());
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        let slow = saga.step("slow", async |tx| {
            if counter.up() == 1 {
                std::future::pending::<()>().await;
            }
            Ok(DB::apply(tx, String::from("slow")).await?)
        });
        // A misuse: the answer to the first attempt is lost.
        let limit = Duration::from_millis(if tries_so_far.get() == 0 { 500 } else { 30_000 });
        let _ = tokio::time::timeout(limit, slow).await;
        saga.step("next", async |tx| Ok(DB::apply(tx, String::from("next")).await?)).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    finished(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["slow", "next"]);
}
