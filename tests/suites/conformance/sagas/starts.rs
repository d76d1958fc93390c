//! A saga starts once per type and id, in the caller's transaction.

use super::*;
use inbox::{HandlerError, Next};
use outbox::CommitError;
use saga::{OVERDUE_COUNTED_MAX, Run, StartError, Stop};

tests::cases! { "saga/starts/{on}/{case}":
    every {
        a_saga_starts_with_its_transaction_or_not_at_all,
        a_second_start_is_told_the_state,
        another_input_under_the_same_id_is_refused,
        an_input_that_differs_in_its_last_digit_is_refused,
        racing_starts_start_one_saga,
        an_unknown_type_or_name_is_refused,
        a_handler_s_error_says_what_a_failed_start_means,
        a_version_that_nobody_has_here_waits_and_is_listed,
        overdue_sagas_are_counted_up_to_a_bound,
        a_transaction_that_was_ended_starts_no_saga,
        a_failed_start_makes_commit_refuse,
    }
}

async fn echo<DB: Tables>(_: &mut Run<DB>, input: i64) -> Result<i64, Stop> {
    Ok(input)
}

async fn a_saga_starts_with_its_transaction_or_not_at_all<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    let worker = Worker::of(&sagas);
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    assert_eq!(sagas.start(&mut tx, "checkout", "gone", &1).await.unwrap(), Started::Started);
    tx.rollback().await.unwrap();
    // A transaction of sqlx works as well.
    let mut tx = db.service.begin().await.unwrap();
    assert_eq!(sagas.start(&mut tx, "checkout", "there", &2).await.unwrap(), Started::Started);
    tx.commit().await.unwrap();
    assert_eq!(finished(&sagas, "there").await, "2");
    assert_eq!(sagas.show(&id("gone")).await.unwrap(), None);
    worker.stop().await;
}

async fn a_second_start_is_told_the_state<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::Started);
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::AlreadyThere(State::Running));
    let worker = Worker::of(&sagas);
    finished(&sagas, "a").await;
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::AlreadyThere(State::Finished));
    worker.stop().await;
}

async fn another_input_under_the_same_id_is_refused<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::Started);
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let refused = sagas.start(&mut tx, "checkout", "a", &2).await.unwrap_err();
    assert!(matches!(&refused, StartError::KeyReused { id } if *id == super::id("a")), "{refused}");
    assert!(refused.is_refusal(), "the arguments are at fault");
    tx.rollback().await.unwrap();
    assert_eq!(show(&sagas, "a").await.0.input, "1", "what was there stays");
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let told = sagas.start(&mut tx, "checkout", "b", "text").await.unwrap_err().to_string();
    assert!(told.contains("checkout") && told.contains("i64"), "{told}");
}

async fn an_input_that_differs_in_its_last_digit_is_refused<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async |_: &mut Run<DB>, input: u128| Ok::<_, Stop>(input))
        .open()
        .await
        .unwrap();
    let mut tx = db.service.begin().await.unwrap();
    for started in [Started::Started, Started::AlreadyThere(State::Running)] {
        assert_eq!(sagas.start(&mut tx, "checkout", "a", &u128::MAX).await.unwrap(), started);
    }
    let refused = sagas.start(&mut tx, "checkout", "a", &(u128::MAX - 1)).await.unwrap_err();
    assert!(matches!(refused, StartError::KeyReused { .. }), "{refused}");
    tx.commit().await.unwrap();
}

async fn racing_starts_start_one_saga<DB: Tables>(db: Database<DB>) {
    let runs = Counter::default();
    let counter = runs.clone();
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, input: i64| {
            saga.step("once", async |tx| {
                counter.up();
                Ok(DB::apply(tx, String::from("once")).await?)
            })
            .await?;
            Ok(input)
        })
        .open()
        .await
        .unwrap();
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let (db, sagas) = (db.clone(), sagas.clone());
            tokio::spawn(async move { started(&db, &sagas, "a", 1).await })
        })
        .collect();
    let mut started = 0;
    for racer in racing {
        started += usize::from(racer.await.unwrap() == Started::Started);
    }
    assert_eq!(started, 1);
    let worker = Worker::of(&sagas);
    finished(&sagas, "a").await;
    worker.stop().await;
    assert_eq!((effects(&db).await.len(), runs.get()), (1, 1));
}

async fn an_unknown_type_or_name_is_refused<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    let mut tx = db.service.begin().await.unwrap();
    let unknown = sagas.start(&mut tx, "refunds", "a", &1).await.unwrap_err();
    assert!(matches!(&unknown, StartError::UnknownType { saga_type } if saga_type == "refunds"), "{unknown}");
    for name in ["", "a/b", "a b", &"i".repeat(126)] {
        let error = sagas.start(&mut tx, "checkout", name, &1).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().starts_with("the id of a saga"), "{error}");
    }
    let twice = super::sagas(&db).saga("checkout", 1, echo::<DB>).starts("checkout", 1).open().await;
    assert!(twice.unwrap_err().to_string().contains("registered twice"));
}

/// Goal: `sagas.start(tx, ..).await?` in a handler. Oracle: a start that can never succeed is
/// rejected; one that another version of the program may know is tried again.
async fn a_handler_s_error_says_what_a_failed_start_means<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::Started);
    let mut tx = db.service.begin().await.unwrap();
    for (saga_type, id, input, next) in [
        ("checkout", "a", 2, Next::Reject),
        ("checkout", "a/b", 1, Next::Reject),
        ("refunds", "a", 1, Next::Retry),
    ] {
        let refused = sagas.start(&mut tx, saga_type, id, &input).await.unwrap_err();
        assert_eq!(HandlerError::from(refused).next(), next, "{saga_type}/{id}");
    }
    let unfit = sagas.start(&mut tx, "checkout", "b", "text").await.unwrap_err();
    assert_eq!(HandlerError::from(unfit).next(), Next::Reject);
}

async fn a_version_that_nobody_has_here_waits_and_is_listed<DB: Tables>(db: Database<DB>) {
    let starter = sagas(&db).starts("checkout", 2).open().await.unwrap();
    start(&db, &starter, "new", 1).await;
    let old = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    start(&db, &old, "old", 1).await;
    let worker = Worker::of(&old);
    finished(&old, "old").await;
    let saga = show(&old, "new").await.0;
    assert_eq!(
        (saga.outline.state, saga.outline.version, saga.outline.epoch),
        (State::Running, 2, 0),
        "left alone"
    );
    let overdue = old.overdue(Duration::ZERO).await.unwrap();
    assert!(matches!(&overdue[..], [one] if one.version == 2 && one.sagas == 1), "{overdue:?}");
    worker.stop().await;
    let new = sagas(&db).saga("checkout", 2, echo::<DB>).open().await.unwrap();
    let worker = Worker::of(&new);
    finished(&new, "new").await;
    worker.stop().await;
}

/// Goal: after sqlx has ended a transaction unnoticed by the caller, no saga starts on its own.
/// Oracle: the rows, and every error.
async fn a_transaction_that_was_ended_starts_no_saga<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    DB::apply(&mut tx, String::from("ordered")).await.unwrap();
    tests::drop_a_begin(tx.connection()).await;
    let refused = sagas.start(&mut tx, "checkout", "a", &1).await.unwrap_err();
    assert!(matches!(refused, StartError::Ended), "{refused:?}");
    let again = sagas.start(&mut tx, "checkout", "a", &1).await.unwrap_err();
    assert!(matches!(again, StartError::Poisoned(_)), "{again:?}");
    assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { retryable: false, .. })));
    let mut tx = db.service.begin().await.unwrap();
    tests::drop_a_begin(&mut *tx).await;
    let refused = sagas.start(&mut tx, "checkout", "b", &1).await.unwrap_err();
    assert!(matches!(refused, StartError::Ended), "{refused:?}");
    assert!(!refused.is_refusal() && HandlerError::from(refused).next() == Next::Retry);
    drop(tx);
    assert_eq!(db.integer("SELECT count(*) FROM saga").await.unwrap(), 0);
    assert_eq!(effects(&db).await, [""; 0]);
    // A savepoint that begins and ends correctly does no harm.
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let mut savepoint = sqlx::Connection::begin(tx.connection()).await.unwrap();
    assert_eq!(sagas.start(&mut savepoint, "checkout", "c", &1).await.unwrap(), Started::Started);
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.integer("SELECT count(*) FROM saga").await.unwrap(), 1);
}

/// Goal: business rows do not commit without their saga when the error of its start is ignored.
/// Oracle: the rows.
async fn a_failed_start_makes_commit_refuse<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db).saga("checkout", 1, echo::<DB>).open().await.unwrap();
    assert_eq!(started(&db, &sagas, "a", 1).await, Started::Started);
    for (saga_type, id, told) in [
        ("checkout", "a", "with a different input"),
        ("refunds", "b", "is unknown here"),
        ("checkout", "", "is empty"),
    ] {
        let mut tx = Outbox::new().begin(&db.service).await.unwrap();
        DB::apply(&mut tx, String::from("ordered")).await.unwrap();
        assert!(sagas.start(&mut tx, saga_type, id, &2).await.unwrap_err().is_refusal());
        let refused = tx.commit().await.unwrap_err();
        assert!(
            matches!(&refused, CommitError::Poisoned { first, .. } if first.contains(told)),
            "{saga_type}/{id}: {refused}"
        );
    }
    // A call that is dropped half-way may have stored the saga or not. On SQLite it may also have
    // ended at its first poll.
    loop {
        let mut tx = Outbox::new().begin(&db.service).await.unwrap();
        DB::apply(&mut tx, String::from("ordered")).await.unwrap();
        if futures_util::poll!(std::pin::pin!(sagas.start(&mut tx, "checkout", "c", &1))).is_ready() {
            continue;
        }
        let refused = tx.commit().await.unwrap_err();
        assert!(refused.to_string().contains("dropped"), "{refused}");
        break;
    }
    assert_eq!(effects(&db).await, [""; 0]);
    assert_eq!(db.integer("SELECT count(*) FROM saga").await.unwrap(), 1);
}

/// Goal: the queries of maintenance, once a minute, read only a bounded part of a backlog. Oracle:
/// the counts of two versions, one of which has more sagas than are counted, and its longest wait.
async fn overdue_sagas_are_counted_up_to_a_bound<DB: Tables>(db: Database<DB>) {
    let is_sqlite = DB::DIALECT == migrations::Dialect::Sqlite;
    let ago = |hours: i64| {
        if is_sqlite {
            format!("CAST(unixepoch('subsec') * 1000000 AS INTEGER) - {hours} * 3600000000")
        } else {
            format!("now() - interval '{hours} hours'")
        }
    };
    for (version, count, hours) in [(1, OVERDUE_COUNTED_MAX + 10, 2), (2, 3, 1)] {
        db.execute(&format!(
            "INSERT INTO saga (type, id, version, input, wake_at, state)              WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})              SELECT 'checkout', 'old-{version}-' || n, {version}, '1', {}, 'running' FROM n",
            ago(hours)
        ))
        .await
        .unwrap();
    }
    let overdue = sagas(&db).open().await.unwrap().overdue(Duration::from_secs(60)).await.unwrap();
    let mut counts: Vec<_> = overdue.iter().map(|overdue| (overdue.version, overdue.sagas)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(1, OVERDUE_COUNTED_MAX), (2, 3)]);
    let longest = overdue.iter().map(|overdue| overdue.longest).max().unwrap();
    assert!(longest >= Duration::from_secs(7_200), "{longest:?}");
}
