//! Workers: no two run a saga at once, and a paused worker changes nothing after its lease.

use super::*;
use outbox::NewMessage;
use saga::{Run, crash_points};
use tokio::sync::Notify;

tests::cases! { "saga/workers/{on}/{case}":
    every {
        no_saga_is_run_by_two_at_once,
        a_paused_worker_changes_nothing_after_its_lease,
        a_worker_whose_saga_was_taken_commits_no_step,
        a_paused_worker_does_not_call_after_its_lease,
        a_living_worker_renews_its_lease,
        another_worker_goes_on_after_a_crash,
        what_ends_its_workers_is_stuck,
        what_was_stored_ends_the_failures_before_it,
        a_stopping_worker_lets_its_sagas_go,
        a_busy_type_leaves_room_for_the_others,
        concurrency_is_bounded,
        a_worker_goes_on_when_columns_are_added,
        options_out_of_bounds_are_refused,
    }
    night on_postgres {
        a_database_host_that_is_gone_stops_no_worker,
        long_steps_that_use_up_the_pool_cost_no_lease,
    }
    night every { a_living_worker_keeps_a_long_step }
}

/// Goal: an option that is out of bounds is not changed silently. Oracle: the error of `open`.
async fn options_out_of_bounds_are_refused<DB: Tables>(db: Database<DB>) {
    let options = fast().lease(Duration::from_secs(86_400));
    let refused = sagas(&db).options(options).open().await.unwrap_err();
    assert_eq!(refused.to_string(), "the lease is 1d; choose 1s to 1h");
}

async fn no_saga_is_run_by_two_at_once<DB: Tables>(db: Database<DB>) {
    let (running, twice) = (Arc::new(Mutex::new(HashMap::<String, u32>::new())), Counter::default());
    let (shared, overlaps) = (Arc::clone(&running), twice.clone());
    let builder = || {
        let (shared, overlaps) = (Arc::clone(&shared), overlaps.clone());
        sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            let name = saga.id().to_owned();
            let enter = |change: i32| {
                let mut running = shared.lock().unwrap();
                let now = running.entry(name.clone()).or_default();
                *now = now.saturating_add_signed(change);
                if *now > 1 {
                    overlaps.up();
                }
            };
            for step in ["one", "two", "three"] {
                let done = saga.step(step, async |tx| {
                    enter(1);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    enter(-1);
                    Ok(DB::apply(tx, format!("{name} {step}")).await?)
                });
                done.await?;
            }
            Ok(())
        })
    };
    let (first, second) = (builder().open().await.unwrap(), builder().open().await.unwrap());
    let names: Vec<String> = (0..40).map(|n| format!("s-{n}")).collect();
    for name in &names {
        start(&db, &first, name, 0).await;
    }
    let workers = [Worker::of(&first), Worker::of(&second)];
    for name in &names {
        finished(&first, name).await;
    }
    for worker in workers {
        worker.stop().await;
    }
    let (mut all, count) = (effects(&db).await, names.len() * 3);
    all.sort();
    all.dedup();
    assert_eq!((all.len(), effects(&db).await.len(), twice.get()), (count, count, 0));
}

/// Returns a hook that pauses a worker at one place until the test lets it continue.
pub(super) fn paused_at(place: &'static str) -> (saga::Hook, Arc<Notify>, Arc<Notify>) {
    let (is_there, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (there, on) = (Arc::clone(&is_there), Arc::clone(&go_on));
    let hook: saga::Hook = Arc::new(move |_, at| {
        let (there, on) = (Arc::clone(&there), Arc::clone(&on));
        Box::pin(async move {
            if at == place {
                there.notify_one();
                on.notified().await;
            }
            false
        })
    });
    (hook, is_there, go_on)
}

/// A saga with one step, whose effect and message name the worker.
pub(super) fn by<DB: Tables>(db: &Database<DB>, who: &'static str) -> SagasBuilder<DB> {
    sagas(db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| {
            DB::apply(tx, format!("one by {who}")).await?;
            tx.enqueue(NewMessage::new("stock").payload(who)).await?;
            Ok(())
        })
        .await?;
        Ok(who)
    })
}

async fn a_paused_worker_changes_nothing_after_its_lease<DB: Tables>(db: Database<DB>) {
    for place in [crash_points::AFTER_CLAIM, crash_points::BEFORE_END] {
        let (hook, is_there, go_on) = paused_at(place);
        // While it is paused, it cannot claim another saga.
        let mut alone = fast();
        alone.concurrency = 1.try_into().unwrap();
        let paused = by(&db, "the paused one").options(alone).hook(hook).open().await.unwrap();
        let other = by(&db, "the other one").open().await.unwrap();
        let name = place.replace("::", "-");
        start(&db, &paused, &name, 0).await;
        let paused_worker = Worker::of(&paused);
        is_there.notified().await;
        let before = effects(&db).await.len();
        let other_worker = Worker::of(&other);
        let epoch = format!("SELECT epoch FROM saga WHERE id = '{name}'");
        let first = db.integer(&epoch).await.unwrap();
        // It still renews its lease, possibly before the other one looks.
        let taken = || async {
            db.execute(DB::NOW).await?;
            Ok((db.integer(&epoch).await? > first).then_some(()))
        };
        eventually("the other one has taken the saga", taken).await.unwrap();
        assert_eq!(finished(&other, &name).await, "\"the other one\"");
        let after = (effects(&db).await, show(&other, &name).await.0);
        go_on.notify_one();
        paused_worker.stop().await;
        other_worker.stop().await;
        assert_eq!((effects(&db).await, show(&other, &name).await.0), after, "{place}");
        assert!(effects(&db).await.len() <= before + 1, "{place}");
    }
    let messages = db.integer("SELECT count(*) FROM outbox_message").await.unwrap();
    assert_eq!(messages, 2, "one for each saga");
}

/// The worker that took the saga has not begun its step yet, so only the claim shows the loss.
async fn a_worker_whose_saga_was_taken_commits_no_step<DB: Tables>(db: Database<DB>) {
    let (hook, is_there, go_on) = paused_at(crash_points::AFTER_CLAIM);
    let (_, worker) = begun(&db, by(&db, "the paused one").hook(hook), 0).await;
    is_there.notified().await;
    db.execute("UPDATE saga SET epoch = epoch + 1, worker = 'the other one'").await.unwrap();
    go_on.notify_one();
    worker.stop().await;
    assert_eq!(effects(&db).await, [""; 0]);
    assert_eq!(db.integer("SELECT count(*) FROM saga_step").await.unwrap(), 0);
}

async fn a_paused_worker_does_not_call_after_its_lease<DB: Tables>(db: Database<DB>) {
    let bank = Bank::default();
    let (hook, is_there, go_on) = paused_at(crash_points::BEFORE_CALL);
    let here = bank.clone();
    let mut options = fast();
    options.lease = Duration::from_secs(1);
    let code = sagas(&db).options(options).hook(hook).saga(
        "checkout",
        1,
        async move |saga: &mut Run<DB>, cents: i64| {
            saga.call("charge", async |key| here.charge(key, cents).await).await
        },
    );
    let (_, worker) = begun(&db, code, 5).await;
    is_there.notified().await;
    // Another worker has taken the saga, so this one cannot renew its lease.
    db.execute("UPDATE saga SET epoch = epoch + 1, worker = 'the other one'").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    go_on.notify_one();
    worker.stop().await;
    assert_eq!(bank.account("checkout/a/charge").charges, 0);
}

/// Goal: a saga stays with its worker while a call runs. Oracle: the end of the lease moves while
/// another worker polls, and the saga was claimed once. The lease is long, so that only a worker
/// that does not renew it loses it.
async fn a_living_worker_renews_its_lease<DB: Tables>(db: Database<DB>) {
    const ENDS: &str = "SELECT CAST(wake_at AS text) FROM saga";
    let began = Arc::new(Notify::new());
    let goes_on = Arc::new(Notify::new());
    let (there, on) = (Arc::clone(&began), Arc::clone(&goes_on));
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.call("slow", async |_| {
            there.notify_one();
            on.notified().await;
            Ok(())
        })
        .await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    let other = Worker::of(&sagas);
    began.notified().await;
    let claimed = db.texts(ENDS).await.unwrap();
    eventually("the lease is renewed", async || Ok((db.texts(ENDS).await? != claimed).then_some(())))
        .await
        .unwrap();
    goes_on.notify_one();
    finished(&sagas, "a").await;
    for worker in [worker, other] {
        worker.stop().await;
    }
    assert_eq!(show(&sagas, "a").await.0.outline.epoch, 1, "nobody else took it");
}

async fn a_living_worker_keeps_a_long_step<DB: Tables>(db: Database<DB>) {
    let mut options = fast();
    options.lease = Duration::from_secs(4);
    let sagas = sagas(&db)
        .options(options)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.call("slow", async |_| {
                tokio::time::sleep(Duration::from_secs(6)).await;
                Ok(())
            })
            .await
        })
        .open()
        .await
        .unwrap();
    start(&db, &sagas, "a", 0).await;
    let workers = [Worker::of(&sagas), Worker::of(&sagas)];
    finished(&sagas, "a").await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(show(&sagas, "a").await.0.outline.epoch, 1, "nobody else took it");
}

async fn another_worker_goes_on_after_a_crash<DB: Tables>(db: Database<DB>) {
    let vanish: saga::Hook =
        Arc::new(|_, place| Box::pin(async move { place == crash_points::AFTER_STEP_COMMIT }));
    let (_, worker) = begun(&db, by(&db, "the first").hook(vanish), 0).await;
    eventually("the step is there", async || Ok((effects(&db).await.len() == 1).then_some(())))
        .await
        .unwrap();
    worker.stop().await;
    let second = by(&db, "the second").open().await.unwrap();
    let worker = Worker::of(&second);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(show(&second, "a").await.0.outline.state, State::Running, "the lease keeps it");
    db.execute(DB::NOW).await.unwrap();
    assert_eq!(finished(&second, "a").await, "\"the second\"");
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one by the first"], "the step is not repeated");
}

/// The saga kills its worker's process again and again.
async fn what_ends_its_workers_is_stuck<DB: Tables>(db: Database<DB>) {
    let (tries, kills) = (Counter::default(), Counter::default());
    let two_steps = |sagas: SagasBuilder<DB>| {
        let tries = tries.clone();
        sagas.saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?)).await?;
            saga.step("two", async |tx| {
                tries.up();
                Ok(DB::apply(tx, String::from("two")).await?)
            })
            .await
        })
    };
    let (killed, counter) = (kills.clone(), tries.clone());
    let vanish: saga::Hook = Arc::new(move |_, place| {
        let dies = place == crash_points::BEFORE_STEP_COMMIT && counter.get() > killed.get();
        if dies {
            killed.up();
        }
        Box::pin(async move { dies })
    });
    let (crashing, worker) = begun(&db, two_steps(sagas(&db)).hook(vanish), 0).await;
    for death in 1..=10 {
        eventually("its worker is gone", async || Ok((kills.get() == death).then_some(()))).await.unwrap();
        // The lease ends. From the second time on, a short pause follows.
        db.execute(DB::NOW).await.unwrap();
        let is_tried = async || {
            let saga = show(&crashing, "a").await.0;
            Ok((kills.get() > death || saga.outline.stuck_at.is_some()).then_some(()))
        };
        eventually("it is tried again", is_tried).await.unwrap();
    }
    let told = stuck(&crashing, "a").await;
    assert!(told.contains("10 times in a row") && told.contains("its worker ended"), "{told}");
    let (saga, steps) = show(&crashing, "a").await;
    assert_eq!((saga.outline.waits_for.as_deref(), steps.len(), tries.get()), (Some("two"), 1, 10));
    worker.stop().await;
    operators::operator(&db).await.retry(&id("a"), &operators::alice()).await.unwrap();
    let sound = two_steps(sagas(&db)).open().await.unwrap();
    let worker = Worker::of(&sound);
    finished(&sound, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "two"]);
}

/// After a crash, the next worker does not count failures that an earlier success has ended.
async fn what_was_stored_ends_the_failures_before_it<DB: Tables>(db: Database<DB>) {
    let tries = Counter::default();
    let (counter, reached) = (tries.clone(), Counter::default());
    let seen = reached.clone();
    let vanish: saga::Hook = Arc::new(move |_, place| {
        let dies = place == crash_points::AFTER_STEP_COMMIT;
        if dies {
            seen.up();
        }
        Box::pin(async move { dies })
    });
    let code = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            let step = saga.step("one", async |_| match counter.up() {
                3 => Ok(()),
                _ => Err(StepError::retry("no")),
            });
            step.await
        })
        .hook(vanish);
    let (crashing, worker) = begun(&db, code, 0).await;
    eventually("its worker is gone", async || Ok((reached.get() == 1).then_some(()))).await.unwrap();
    worker.stop().await;
    let saga = show(&crashing, "a").await.0;
    assert_eq!((saga.outline.attempts, saga.outline.error), (0, None));
}

async fn a_stopping_worker_lets_its_sagas_go<DB: Tables>(db: Database<DB>) {
    let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (there, on) = (Arc::clone(&began), Arc::clone(&goes_on));
    let code = sagas(&db).saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
        saga.step("one", async |tx| {
            there.notify_one();
            on.notified().await;
            Ok(DB::apply(tx, String::from("one")).await?)
        })
        .await?;
        saga.step("two", async |tx| Ok(DB::apply(tx, String::from("two")).await?)).await
    });
    let (sagas, worker) = begun(&db, code, 0).await;
    began.notified().await;
    worker.stop.cancel();
    worker.has_noticed.cancelled().await;
    // The worker notices the stop shortly before it acts on it.
    tokio::time::sleep(Duration::from_millis(250)).await;
    goes_on.notify_one();
    worker.running.await.unwrap();
    let saga = show(&sagas, "a").await.0;
    assert_eq!(
        (saga.outline.state, saga.outline.worker),
        (State::Running, None),
        "at once free for another one"
    );
    assert_eq!(effects(&db).await, ["one"]);
    let worker = Worker::of(&sagas);
    finished(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(effects(&db).await, ["one", "two"]);
}

async fn a_busy_type_leaves_room_for_the_others<DB: Tables>(db: Database<DB>) {
    let mut options = fast();
    options.concurrency = 2.try_into().unwrap();
    let slow = async move |saga: &mut Run<DB>, _: i64| {
        saga.call("slow", async |_| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(())
        })
        .await
    };
    let sagas =
        sagas(&db).options(options).saga("busy", 1, slow).saga("checkout", 1, slow).open().await.unwrap();
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    for number in 0..60 {
        assert_eq!(sagas.start(&mut tx, "busy", &number.to_string(), &0).await.unwrap(), Started::Started);
    }
    tx.commit().await.unwrap();
    start(&db, &sagas, "a", 0).await;
    let worker = Worker::of(&sagas);
    finished(&sagas, "a").await;
    let done =
        db.integer("SELECT count(*) FROM saga WHERE type = 'busy' AND state = 'finished'").await.unwrap();
    assert!(done < 30, "{done} of 60 of the busy type came first");
    worker.stop().await;
}

async fn concurrency_is_bounded<DB: Tables>(db: Database<DB>) {
    let now = Arc::new(Mutex::new((0_u32, 0_u32)));
    let shared = Arc::clone(&now);
    let mut options = fast();
    options.concurrency = 3.try_into().unwrap();
    let sagas = sagas(&db)
        .options(options)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            saga.call("slow", async |_| {
                {
                    let mut counts = shared.lock().unwrap();
                    counts.0 += 1;
                    counts.1 = counts.1.max(counts.0);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                shared.lock().unwrap().0 -= 1;
                Ok(())
            })
            .await
        })
        .open()
        .await
        .unwrap();
    for number in 0..12 {
        start(&db, &sagas, &number.to_string(), 0).await;
    }
    let worker = Worker::of(&sagas);
    for number in 0..12 {
        finished(&sagas, &number.to_string()).await;
    }
    worker.stop().await;
    let most = now.lock().unwrap().1;
    assert!((1..=3).contains(&most), "{most} at once");
}

/// An upgrade adds columns while workers of the previous version keep running, with statements that
/// their connections have prepared.
async fn a_worker_goes_on_when_columns_are_added<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, _: i64| {
            let one = saga.step("one", async |tx| Ok(DB::apply(tx, String::from("one")).await?));
            one.await?;
            saga.sleep("pause", Duration::from_secs(3_600)).await?;
            Ok(())
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    start(&db, &sagas, "a", 0).await;
    until(&sagas, "a", "asleep", |saga| saga.outline.waits_for.is_some()).await;
    for table in ["saga", "saga_step", "saga_reply", "saga_audit"] {
        db.execute(&format!("ALTER TABLE {table} ADD COLUMN later text")).await.unwrap();
    }
    start(&db, &sagas, "b", 0).await;
    until(&sagas, "b", "asleep", |saga| saga.outline.waits_for.is_some()).await;
    db.execute(DB::NOW).await.unwrap();
    sagas.wake();
    for name in ["a", "b"] {
        finished(&sagas, name).await;
    }
    worker.stop().await;
}

/// Goal: steps that use all the connections they may have, for longer than the lease, do not lose
/// their sagas. Oracle: the leases are renewed beyond their length, and no other worker claims a
/// saga.
async fn long_steps_that_use_up_the_pool_cost_no_lease(db: Database<Postgres>) {
    let url = Role::Service.url(&db.url).unwrap();
    let pool = outbox::pool_options::<Postgres>().max_connections(4).connect(&url).await.unwrap();
    let mut options = fast();
    options.lease = Duration::from_secs(1);
    let go_on = CancellationToken::new();
    let (here, begun) = (go_on.clone(), Counter::default());
    let count = begun.clone();
    let sagas = Sagas::builder(pool, Outbox::new())
        .options(options)
        .saga("checkout", 1, async move |saga: &mut Run<Postgres>, _: i64| {
            saga.step("long", async |tx| {
                Postgres::apply(tx, String::from("long")).await?;
                count.up();
                here.cancelled().await;
                Ok(())
            })
            .await
        })
        .open()
        .await
        .unwrap();
    let names: Vec<String> = (0..6).map(|n| format!("s-{n}")).collect();
    for name in &names {
        start(&db, &sagas, name, 0).await;
    }
    let worker = Worker::of(&sagas);
    eventually("two steps hold the connections they may have", async || Ok((begun.get() == 2).then_some(())))
        .await
        .unwrap();
    let ends = "SELECT wake_at::text FROM saga ORDER BY id";
    let (mut last, mut renewals) = (db.texts(ends).await.unwrap(), 0);
    while renewals < 5 {
        let now = eventually("the leases are renewed", async || {
            let now = db.texts(ends).await?;
            Ok((now != last).then_some(now))
        });
        last = now.await.unwrap();
        renewals += 1;
    }
    assert_eq!(db.integer("SELECT max(epoch) FROM saga").await.unwrap(), 1, "nobody else took one");
    go_on.cancel();
    for name in &names {
        finished(&sagas, name).await;
    }
    worker.stop().await;
    assert_eq!((effects(&db).await.len(), begun.get()), (6, 6), "each step ran once");
}

/// Goal: a host that disappears silently, with requests on their way to it, stops no worker once
/// another host answers at its address. Oracle: the effects of every saga, once.
async fn a_database_host_that_is_gone_stops_no_worker(db: Database<Postgres>) {
    let (pool, wire) = crate::proxied::pool(&Role::Service.url(&db.url).unwrap(), 4).await;
    let (wire, tries) = (Arc::new(wire), Counter::default());
    let gone = Arc::clone(&wire);
    let mut options = fast();
    options.attempts_max = 10;
    options.lease = Duration::from_secs(2);
    options.call_timeout = Duration::from_secs(1);
    let sagas = Sagas::builder(pool, Outbox::new())
        .options(options)
        .saga("checkout", 1, async move |saga: &mut Run<Postgres>, _: i64| {
            let name = saga.id().to_owned();
            for step in ["one", "two", "three"] {
                let work = saga.step(step, async |tx| {
                    if step == "two" && [3, 7].contains(&tries.up()) {
                        // No answer and no connection error reaches the next statement of any
                        // session.
                        gone.abandon(proxy::End::Server);
                    }
                    Ok(Postgres::apply(tx, format!("{name} {step}")).await?)
                });
                work.await?;
            }
            Ok(())
        })
        .open()
        .await
        .unwrap();
    let names: Vec<String> = (0..12).map(|n| format!("s-{n}")).collect();
    for name in &names {
        start(&db, &sagas, name, 0).await;
    }
    let (worker, looking) = (Worker::of(&sagas), operators::operator(&db).await);
    for name in &names {
        finished(&looking, name).await;
    }
    worker.stop().await;
    let (mut all, count) = (effects(&db).await, names.len() * 3);
    assert_eq!(all.len(), count);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "each step took effect once");
}
