//! Decisions of operators, and the rights that they need.

use super::*;
use saga::{Action, Choice, DecideError, Run, SagaQuery, Signature, UndoState, crash_points};
use std::num::NonZeroU32;

tests::cases! { "saga/operators/{on}/{case}":
    every {
        a_stuck_saga_is_listed_and_goes_on_after_a_retry,
        a_waiting_saga_is_cancelled_at_once,
        a_saga_in_hand_is_cancelled_after_its_step,
        a_saga_of_a_worker_from_a_clock_that_was_days_ahead_is_cancelled,
        a_saga_cancelled_while_it_finishes_is_undone,
        a_saga_cancelled_while_its_last_attempt_fails_is_undone,
        a_saga_cancelled_after_its_end_stays_as_it_is,
        a_failing_undo_is_skipped,
        a_failing_step_is_given_a_result,
        a_step_of_any_kind_is_given_a_result_before_it_began,
        a_misspelt_step_is_not_given_a_result,
        no_name_is_given_a_result_between_steps,
        a_result_that_does_not_fit_is_replaced,
        a_panicking_step_is_given_a_result,
        decisions_are_noted_and_refused_where_they_do_not_apply,
        of_two_decisions_about_one_sight_one_counts,
        of_two_cancels_of_a_saga_in_hand_one_counts,
    }
}

pub(super) fn alice() -> Signature {
    Signature { actor: String::from("alice"), note: String::from("ticket 7"), selection: None }
}

/// Opens the sagas as an operator: a decision needs more rights than a service has.
pub(super) async fn operator<DB: Tables>(db: &Database<DB>) -> Sagas<DB> {
    Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap()
}

fn some() -> NonZeroU32 {
    NonZeroU32::new(100).unwrap()
}

/// A saga with one step that has an undo, and one that fails `until` times.
fn failing<DB: Tables>(db: &Database<DB>, failures: Counter, until: u32) -> SagasBuilder<DB> {
    sagas(db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo one")).await?))
            .await?;
        let two: i64 = saga
            .step("two", async |_| match failures.up() {
                count if count <= until => Err(StepError::retry("no")),
                _ => Ok(2),
            })
            .await?;
        Ok(two)
    })
}

async fn a_stuck_saga_is_listed_and_goes_on_after_a_retry<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, failing(&db, Counter::default(), 3), 0).await;
    stuck(&sagas, "a").await;
    let operator = operator(&db).await;
    let mut query = SagaQuery::open(some());
    query.is_stuck = true;
    let listed = operator.list(&query).await.unwrap();
    assert!(matches!(&listed[..], [one] if one.id == id("a") && one.attempts == 3), "{listed:?}");
    operator.retry(&id("a"), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "2");
    worker.stop().await;
    assert_eq!(operator.list(&query).await.unwrap(), []);
    let decisions = operator.decisions(some()).await.unwrap();
    let [decision] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!((decision.action, &decision.signature), (Action::Retry, &alice()));
}

async fn a_waiting_saga_is_cancelled_at_once<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo one")).await?))
            .await?;
        saga.sleep("pause", Duration::from_secs(3_600)).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    until(&sagas, "a", "asleep", |saga| saga.outline.waits_for.is_some() && saga.outline.worker.is_none())
        .await;
    operator(&db).await.cancel(&id("a"), &alice()).await.unwrap();
    assert_eq!(undone(&sagas, "a").await, "cancelled by alice: ticket 7");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "undo one"]);
}

/// Goal: a saga whose worker died while the server's clock was days ahead is cancelled at once, not
/// when its lease is over. Oracle: it is undone.
async fn a_saga_of_a_worker_from_a_clock_that_was_days_ahead_is_cancelled<DB: Tables>(db: Database<DB>) {
    let sagas = failing(&db, Counter::default(), 0).open().await.unwrap();
    start(&db, &sagas, "a", 0).await;
    db.execute("UPDATE saga SET worker = 'gone', epoch = epoch + 1").await.unwrap();
    db.execute(DB::AHEAD).await.unwrap();
    operator(&db).await.cancel(&id("a"), &alice()).await.unwrap();
    let worker = Worker::of(&sagas);
    assert_eq!(undone(&sagas, "a").await, "cancelled by alice: ticket 7");
    worker.stop().await;
}

/// Runs a saga and cancels it when its worker reaches this point.
async fn cancelled_at<DB: Tables>(db: &Database<DB>, place: &'static str) -> Sagas<DB> {
    let operator = operator(db).await;
    let cancelled = Counter::default();
    let hook: saga::Hook = Arc::new(move |name, at| {
        let (operator, name, is_now) =
            (operator.clone(), name.to_owned(), at == place && cancelled.up() == 1);
        Box::pin(async move {
            if is_now {
                operator.cancel(&id(&name), &alice()).await.unwrap();
            }
            false
        })
    });
    let bank = Bank::default();
    sagas(db)
        .hook(hook)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
            let there = bank.clone();
            saga.call("charge", async |key| there.charge(key, cents).await)
                .undo(async |key, charge: Option<&i64>| {
                    assert_eq!(charge, Some(&cents), "the call in hand ended before it was undone");
                    there.refund(key).await
                })
                .await?;
            saga.step("after", async |tx| Ok(DB::apply(tx, String::from("after")).await?))
                .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo after")).await?))
                .await
        })
        .open()
        .await
        .unwrap()
}

async fn a_saga_in_hand_is_cancelled_after_its_step<DB: Tables>(db: Database<DB>) {
    let sagas = cancelled_at(&db, crash_points::AFTER_CALL).await;
    start(&db, &sagas, "a", 5).await;
    let worker = Worker::of(&sagas);
    undone(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, [""; 0], "no further step began");
}

async fn a_saga_cancelled_while_it_finishes_is_undone<DB: Tables>(db: Database<DB>) {
    let sagas = cancelled_at(&db, crash_points::BEFORE_END).await;
    start(&db, &sagas, "a", 5).await;
    let worker = Worker::of(&sagas);
    undone(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["after", "undo after"]);
}

async fn a_saga_cancelled_while_its_last_attempt_fails_is_undone<DB: Tables>(db: Database<DB>) {
    let (operator, attempts) = (operator(&db).await, Counter::default());
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo one")).await?))
            .await?;
        saga.call("two", async |_: &StepKey| {
            if attempts.up() == fast().attempts_max {
                operator.cancel(&id("a"), &alice()).await.unwrap();
            }
            Err::<(), _>(StepError::retry("no"))
        })
        .await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    assert_eq!(undone(&sagas, "a").await, "cancelled by alice: ticket 7");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "undo one"]);
}

async fn a_saga_cancelled_after_its_end_stays_as_it_is<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, failing(&db, Counter::default(), 0), 0).await;
    finished(&sagas, "a").await;
    worker.stop().await;
    let told = operator(&db).await.cancel(&id("a"), &alice()).await.unwrap_err().to_string();
    assert!(told.contains("checkout/a is finished") && told.contains("running"), "{told}");
    assert_eq!(effects(&db).await, ["one"]);
}

async fn a_failing_undo_is_skipped<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |_| Ok(()))
            .undo(async |tx, (): &()| Ok(DB::apply(tx, String::from("undo one")).await?))
            .await?;
        saga.step("two", async |_| Ok(()))
            .undo(async |_, (): &()| Err(StepError::stop("the parcel has left")))
            .await?;
        Err::<(), _>(saga::Stop::because("closed"))
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    stuck(&sagas, "a").await;
    let operator = operator(&db).await;
    let told = operator.skip(&id("a"), "three", None, &alice()).await.unwrap_err().to_string();
    assert!(told.contains("three"), "{told}");
    let told = operator.skip(&id("a"), "one", None, &alice()).await.unwrap_err().to_string();
    assert!(told.contains("stuck at two"), "its undo is not what fails: {told}");
    let told = operator.skip(&id("a"), "two", Some(&7.into()), &alice()).await.unwrap_err().to_string();
    assert!(told.contains("is being undone"), "it was asked for while the saga ran: {told}");
    operator.skip(&id("a"), "two", None, &alice()).await.unwrap();
    undone(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["undo one"]);
    assert_eq!(show(&sagas, "a").await.1[1].undo, UndoState::Skipped);
}

async fn a_failing_step_is_given_a_result<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, failing(&db, Counter::default(), u32::MAX), 0).await;
    stuck(&sagas, "a").await;
    operator(&db).await.skip(&id("a"), "two", Some(&77.into()), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "77");
    worker.stop().await;
}

async fn a_step_of_any_kind_is_given_a_result_before_it_began<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.sleep("pause", saga::SPAN_MAX * 2).await?;
        let parcel: String =
            saga.request("ship", &replies::ShipOrder { order: 7 }).within(saga::SPAN_MAX * 2).await?;
        Ok(parcel)
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let operator = operator(&db).await;
    assert!(stuck(&sagas, "a").await.contains("pause"));
    operator.skip(&id("a"), "pause", Some(&().into()), &alice()).await.unwrap();
    until(&sagas, "a", "stuck again", |saga| {
        saga.outline.stuck_at.is_some()
            && saga.outline.error.as_deref().is_some_and(|error| error.contains("ship"))
    })
    .await;
    operator.skip(&id("a"), "ship", Some(&"P-1".into()), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "\"P-1\"");
    worker.stop().await;
}

/// Otherwise the saga would continue, and repeat what the operator did by hand.
async fn a_misspelt_step_is_not_given_a_result<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, failing(&db, Counter::default(), 3), 0).await;
    stuck(&sagas, "a").await;
    let (operator, by_hand) = (operator(&db).await, serde_json::Value::from(77));
    for name in ["tow", "three", "no"] {
        let refused = operator.skip(&id("a"), name, Some(&by_hand), &alice()).await.unwrap_err();
        assert!(matches!(&refused, DecideError::NotSkipped { step, .. } if step == name), "{refused}");
        assert!(refused.to_string().contains("at two"), "{refused}");
    }
    let (saga, steps) = show(&sagas, "a").await;
    assert!(saga.outline.stuck_at.is_some() && steps.len() == 1, "{saga:?} {steps:?}");
    operator.skip(&id("a"), "two", Some(&by_hand), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "77");
    worker.stop().await;
}

/// The saga is stuck in its code between steps, so there is no step that an operator could have
/// done by hand.
async fn no_name_is_given_a_result_between_steps<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, price: i64| {
        saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?)).await?;
        let price = u8::try_from(price).expect("expected by a test");
        saga.step("two", async move |_| Ok(price)).await
    });
    let (sagas, worker) = begun(&db, code, 1_000).await;
    stuck(&sagas, "a").await;
    let operator = operator(&db).await;
    for name in ["two", "tow", "one"] {
        let refused = operator.skip(&id("a"), name, Some(&7.into()), &alice()).await.unwrap_err();
        assert!(matches!(&refused, DecideError::NotSkipped { at: None, .. }), "{refused}");
        assert!(refused.to_string().contains("stuck at none of its steps"), "{refused}");
    }
    worker.stop().await;
    assert_eq!(show(&sagas, "a").await.1.len(), 1);
}

async fn a_result_that_does_not_fit_is_replaced<DB: Tables>(db: Database<DB>) {
    let (sagas, worker) = begun(&db, failing(&db, Counter::default(), u32::MAX), 0).await;
    stuck(&sagas, "a").await;
    let operator = operator(&db).await;
    let refused = operator.skip(&id("a"), "two", None, &alice()).await.unwrap_err();
    assert!(matches!(&refused, DecideError::NoResult { step, .. } if step == "two"), "{refused}");
    operator.skip(&id("a"), "two", Some(&"by hand".into()), &alice()).await.unwrap();
    until(&sagas, "a", "stuck again", |saga| {
        saga.outline.stuck_at.is_some()
            && saga.outline.error.as_deref().is_some_and(|error| error.contains("no longer fits"))
    })
    .await;
    let refused = operator.skip(&id("a"), "one", Some(&7.into()), &alice()).await.unwrap_err();
    assert!(matches!(&refused, DecideError::NotSkipped { .. }), "it has its result: {refused}");
    operator.skip(&id("a"), "two", Some(&77.into()), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "77");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one"]);
}

async fn a_panicking_step_is_given_a_result<DB: Tables>(db: Database<DB>) {
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, input: i64| {
        let one: i64 = saga
            .step("one", async move |_| match input {
                0 => panic!("no rate"),
                rate => Ok(rate),
            })
            .await?;
        Ok(one)
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    assert!(stuck(&sagas, "a").await.contains("no rate"));
    operator(&db).await.skip(&id("a"), "one", Some(&5.into()), &alice()).await.unwrap();
    assert_eq!(finished(&sagas, "a").await, "5");
    worker.stop().await;
}

async fn decisions_are_noted_and_refused_where_they_do_not_apply<DB: Tables>(db: Database<DB>) {
    let sagas = failing(&db, Counter::default(), 0).open().await.unwrap();
    start(&db, &sagas, "a", 0).await;
    let operator = operator(&db).await;
    let refused = operator.retry(&id("a"), &alice()).await.unwrap_err();
    assert!(matches!(refused, DecideError::NotNow { needed: "stuck", .. }), "{refused}");
    let refused = operator.skip(&id("a"), "one", Some(&().into()), &alice()).await.unwrap_err();
    assert!(matches!(refused, DecideError::NotNow { .. }), "{refused}");
    let refused = operator.cancel(&id("nobody"), &alice()).await.unwrap_err();
    assert!(matches!(refused, DecideError::NotFound { .. }), "{refused}");
    assert_eq!(operator.decisions(some()).await.unwrap(), []);
    operator.cancel(&id("a"), &alice()).await.unwrap();
    assert_eq!(operator.decisions(some()).await.unwrap().len(), 1);
}

/// Two operators have seen the same stuck saga. The second one would decide about a different
/// state, in which the decision has a different meaning.
async fn of_two_decisions_about_one_sight_one_counts<DB: Tables>(db: Database<DB>) {
    const SAGAS: usize = 20;
    let sagas = failing(&db, Counter::default(), u32::MAX).open().await.unwrap();
    let names: Vec<String> = (0..SAGAS).map(|number| format!("a{number}")).collect();
    for name in &names {
        start(&db, &sagas, name, 0).await;
    }
    let worker = Worker::of(&sagas);
    for name in &names {
        stuck(&sagas, name).await;
    }
    worker.stop().await;
    let operator = operator(&db).await;
    for name in &names {
        let (saga, _) = operator.look(&id(name)).await.unwrap().unwrap();
        let (name, seen, signature) = (id(name), Some(saga.seen()), alice());
        let (retried, cancelled) = tokio::join!(
            operator.decide(&name, Choice::Retry, seen, &signature),
            operator.decide(&name, Choice::Cancel, seen, &signature),
        );
        let is_late = |done: &Result<(), DecideError>| matches!(done, Err(DecideError::Changed { .. }));
        assert!(
            (retried.is_ok() && is_late(&cancelled)) || (cancelled.is_ok() && is_late(&retried)),
            "{retried:?}, {cancelled:?}"
        );
        let skip = Choice::Skip { step: String::from("two"), result: Some(2.into()) };
        let later = operator.decide(&name, skip, seen, &signature).await;
        assert!(is_late(&later), "{later:?}");
    }
    assert_eq!(operator.decisions(some()).await.unwrap().len(), SAGAS, "one of each is noted");
}

/// A worker holds the saga, so the first cancel does not change its state.
async fn of_two_cancels_of_a_saga_in_hand_one_counts<DB: Tables>(db: Database<DB>) {
    let (operator, cancelled) = (operator(&db).await, Counter::default());
    let hook: saga::Hook = Arc::new(move |name, at| {
        let (operator, id) = (operator.clone(), id(name));
        let is_now = at == crash_points::AFTER_CALL && cancelled.up() == 1;
        Box::pin(async move {
            if is_now {
                let (saga, _) = operator.look(&id).await.unwrap().unwrap();
                let seen = Some(saga.seen());
                operator.decide(&id, Choice::Cancel, seen, &alice()).await.unwrap();
                let bob = Signature { actor: String::from("bob"), ..alice() };
                let late = operator.decide(&id, Choice::Cancel, seen, &bob).await.unwrap_err();
                assert!(late.to_string().contains("running, to be cancelled now"), "{late}");
            }
            false
        })
    });
    let code = sagas(&db).hook(hook).saga("checkout", 1, async move |saga: &mut Run<DB>, cents: i64| {
        saga.call("charge", async |_| Ok(cents)).undo(async |_, _: Option<&i64>| Ok(())).await
    });
    let (sagas, worker) = begun(&db, code, 5).await;
    assert_eq!(undone(&sagas, "a").await, "cancelled by alice: ticket 7");
    worker.stop().await;
}
