//! PostgreSQL: other sessions.

use std::time::Duration;

use harness::faults::Fault as _;
use libtest_mimic::Trial;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use storm::faults::database::{backends, locks, long, prepared, restore, rivals, sequence, slow_commits};
use storm::journal::{SET_BACK, SetBack, WENT_BACK, WentBack};
use tests::{Backend, Outcome, Stage, trial};

use crate::scene::{heal, inject, until, with_database, with_topic};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::Postgres];
    vec![
        trial("database/row_locks_time_others_out", needs, row_locks_time_others_out),
        trial("database/a_table_lock_times_others_out", needs, a_table_lock_times_others_out),
        trial("database/deadlocks_are_met", needs, deadlocks_are_met),
        trial("database/a_serializable_transaction_is_refused", needs, a_serializable_transaction_is_refused),
        trial("database/a_long_transaction_holds_an_id", needs, a_long_transaction_holds_an_id),
        trial(
            "database/a_prepared_transaction_waits_for_its_decision",
            needs,
            a_prepared_transaction_waits_for_its_decision,
        ),
        trial("database/commits_take_long", needs, commits_take_long),
        trial("database/ids_go_back", needs, ids_go_back),
        trial("database/a_backup_takes_the_place_of_the_database", needs, a_backup_takes_the_place),
        trial("database/sessions_are_ended", needs, sessions_are_ended),
        trial("database/statements_are_cancelled", needs, statements_are_cancelled),
    ]
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned())
}

/// Runs a statement that waits only briefly for locks, and returns its error code, if any.
async fn impatient(url: &str, sql: &str) -> Result<Option<String>, tests::Failure> {
    let mut session = PgConnection::connect(url).await?;
    sqlx::query("SET lock_timeout = '50ms'").execute(&mut session).await?;
    let ended = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await;
    Ok(match ended {
        Ok(_) => None,
        Err(error) => Some(code(&error).ok_or(error)?),
    })
}

async fn row_locks_time_others_out(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 8).await?;
    let mut fault = locks::RowLocks::default();
    heal(&mut fault, &stage).await?;
    let injected = inject(&mut fault, &stage, 1).await?;
    let update = "UPDATE account SET name = name";
    assert_eq!(impatient(&database.url, update).await?.as_deref(), Some("55P03"), "{injected}");
    heal(&mut fault, &stage).await?;
    until("the rows are free", async || Ok(impatient(&database.url, update).await?.is_none().then_some(())))
        .await
}

async fn a_table_lock_times_others_out(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut fault = locks::TableLock::default();
    for seed in 0..12 {
        let injected = inject(&mut fault, &stage, seed).await?;
        let write = format!("BEGIN; LOCK TABLE {} IN ROW EXCLUSIVE MODE; ROLLBACK", injected.target);
        assert_eq!(impatient(&database.url, &write).await?.as_deref(), Some("55P03"), "{injected}");
        heal(&mut fault, &stage).await?;
        until("the table is free", async || {
            Ok(impatient(&database.url, &write).await?.is_none().then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Runs a producer that locks in its usual order, until it or a rival is the victim.
async fn deadlocks_are_met(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 3).await?;
    let mut fault = rivals::Deadlocks::default();
    inject(&mut fault, &stage, 1).await?;
    let mut producer = PgConnection::connect(&database.url).await?;
    until("somebody loses", async || {
        let mut transaction = producer.begin().await?;
        for account in ["account-0", "account-1", "account-2"] {
            let locked = sqlx::query("SELECT FROM account WHERE name = $1 FOR UPDATE").bind(account);
            match locked.execute(&mut *transaction).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(30)).await,
                Err(error) if code(&error).as_deref() == Some("40P01") => {
                    transaction.rollback().await?;
                    return Ok(Some(()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        transaction.rollback().await?;
        Ok((fault.lost_by_rivals() > 0).then_some(()))
    })
    .await?;
    // The server counts deadlocks only when the session that lost is outside a transaction.
    until("the server has counted a deadlock", async || {
        let counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        Ok((database.integer(counted).await? > 0).then_some(()))
    })
    .await?;
    heal(&mut fault, &stage).await?;
    no_faults_session_is_left(&database).await
}

async fn a_serializable_transaction_is_refused(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut fault = rivals::Conflicts::default();
    inject(&mut fault, &stage, 1).await?;
    let mut producer = PgConnection::connect(&database.url).await?;
    until("a transaction at REPEATABLE READ comes too late", async || {
        let mut transaction = producer.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *transaction).await?;
        sqlx::query("SELECT count(*) FROM account").execute(&mut *transaction).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let updated = sqlx::query("UPDATE account SET name = name").execute(&mut *transaction).await;
        match updated {
            Ok(_) => Ok(None),
            Err(error) if code(&error).as_deref() == Some("40001") => Ok(Some(())),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    heal(&mut fault, &stage).await?;
    no_faults_session_is_left(&database).await
}

async fn a_long_transaction_holds_an_id(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut fault = long::LongTransaction::default();
    let injected = inject(&mut fault, &stage, 1).await?;
    let held = "SELECT 'transaction ' || backend_xid FROM pg_stat_activity \
                WHERE datname = current_database() AND state = 'idle in transaction'";
    assert_eq!(database.texts(held).await?, [injected.detail]);
    heal(&mut fault, &stage).await?;
    no_faults_session_is_left(&database).await
}

async fn a_prepared_transaction_waits_for_its_decision(test: Stage) -> Outcome {
    let (mut stage, database) = with_database::<Postgres>(&test, 3).await?;
    stage.broker.topics = with_topic(&test, "", "orders").broker.topics;
    let mut fault = prepared::Prepared::default();
    heal(&mut fault, &stage).await?;
    let waiting = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()";
    let messages = "SELECT count(*) FROM outbox_message";
    let mut decisions = Vec::new();
    for seed in 0..6 {
        let before = database.integer(messages).await?;
        let injected = inject(&mut fault, &stage, seed).await?;
        assert_eq!(database.integer(waiting).await?, 1, "{injected}");
        assert_eq!(database.integer(messages).await?, before, "{injected}");
        heal(&mut fault, &stage).await?;
        assert_eq!(database.integer(waiting).await?, 0, "{injected}");
        let commits = injected.detail.ends_with("commits");
        assert_eq!(database.integer(messages).await? > before, commits, "{injected}");
        decisions.push(if commits { checker::Outcome::Ok } else { checker::Outcome::Failed });
    }
    assert!(decisions.contains(&checker::Outcome::Ok) && decisions.contains(&checker::Outcome::Failed));
    let mut steps = Vec::new();
    storm::journal::read(&test.folder().join(prepared::JOURNAL), |step| steps.push(step))?;
    let told: Vec<_> = storm::journal::operations(steps).into_iter().map(|known| known.outcome).collect();
    assert_eq!(told, decisions);
    Ok(())
}

/// Returns the median of eleven commits in one session. The median is needed because a commit that
/// the flush of another session covers does not wait.
async fn usual_commit(url: &str) -> Result<Duration, tests::Failure> {
    let mut session = PgConnection::connect(url).await?;
    let mut took = [Duration::ZERO; 11];
    for took in &mut took {
        let begun = std::time::Instant::now();
        sqlx::query("UPDATE account SET numbers = numbers + 1").execute(&mut session).await?;
        *took = begun.elapsed();
    }
    took.sort_unstable();
    Ok(took[5])
}

async fn commits_take_long(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut fault = slow_commits::SlowCommits::default();
    heal(&mut fault, &stage).await?;
    let mut victim = PgConnection::connect(&database.url).await?;
    let injected = inject(&mut fault, &stage, 1).await?;
    assert!(sqlx::query("SELECT 1").execute(&mut victim).await.is_err(), "its settings are old: {injected}");
    assert!(usual_commit(&database.url).await? >= Duration::from_millis(10), "{injected}");
    heal(&mut fault, &stage).await?;
    until("commits are as fast as before", async || {
        Ok((usual_commit(&database.url).await? < Duration::from_millis(10)).then_some(()))
    })
    .await
}

async fn ids_go_back(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    database.execute("SELECT setval('outbox_message_id_seq', 1000)").await?;
    let injected = inject(&mut sequence::SequenceReset, &stage, 1).await?;
    let last = database.integer("SELECT last_value FROM outbox_message_id_seq").await?;
    assert!((500..1_000).contains(&last) && injected.detail == format!("back to {last}"), "{injected}");
    let mut times: Vec<SetBack> = Vec::new();
    storm::journal::read(&test.folder().join(SET_BACK), |time| times.push(time))?;
    assert!(matches!(times[..], [SetBack { above, up_to }] if above == last && up_to >= 1_000), "{times:?}");
    Ok(())
}

/// Commits an operation of a producer with its messages.
async fn commit_something(stage: &storm::stage::Stage) -> Outcome {
    let mut fault = prepared::Prepared::default();
    for seed in 0.. {
        let injected = inject(&mut fault, stage, seed).await?;
        heal(&mut fault, stage).await?;
        if injected.detail.ends_with("commits") {
            break;
        }
    }
    Ok(())
}

async fn a_backup_takes_the_place(test: Stage) -> Outcome {
    let (mut stage, database) = with_database::<Postgres>(&test, 3).await?;
    stage.broker.topics = with_topic(&test, "", "orders").broker.topics;
    let messages = "SELECT message_id::text FROM outbox_message ORDER BY 1";
    let rows = "SELECT row FROM business ORDER BY 1";
    commit_something(&stage).await?;
    let mut fault = restore::Restore::default();
    heal(&mut fault, &stage).await?;
    let before = (database.texts(messages).await?, database.texts(rows).await?);
    inject(&mut fault, &stage, 1).await?;
    commit_something(&stage).await?;
    let after = (database.texts(messages).await?, database.texts(rows).await?);
    assert!(after.0.len() > before.0.len() && after.1.len() > before.1.len());
    let mut client = PgConnection::connect(&database.url).await?;
    let mut waiting = prepared::Prepared::default();
    inject(&mut waiting, &stage, 1).await?;
    assert!(fault.heal(&stage).await.is_err(), "a prepared transaction was passed over");
    sqlx::query("SELECT 1").execute(&mut client).await?;
    heal(&mut waiting, &stage).await?;
    heal(&mut fault, &stage).await?;
    assert!(
        sqlx::query("SELECT 1").execute(&mut client).await.is_err(),
        "a session has outlived its database"
    );
    let mut client = PgConnection::connect(&database.url).await?;
    let kept: Vec<String> = sqlx::query_scalar(messages).fetch_all(&mut client).await?;
    assert_eq!((kept, sqlx::query_scalar(rows).fetch_all(&mut client).await?), before);
    let mut times: Vec<WentBack> = Vec::new();
    storm::journal::read(&test.folder().join(WENT_BACK), |time| times.push(time))?;
    let [WentBack { messages, rows, .. }] = &times[..] else { return Err("not one entry".into()) };
    let lost: Vec<String> = messages.iter().map(ToString::to_string).collect();
    assert!(after.0.iter().filter(|id| !before.0.contains(id)).all(|id| lost.contains(id)));
    assert!(after.1.iter().filter(|row| !before.1.contains(row)).all(|row| rows.contains(row)));
    assert!(lost.iter().all(|id| !before.0.contains(id)) && rows.iter().all(|row| !before.1.contains(row)));
    Ok(())
}

async fn sessions_are_ended(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut victim = PgConnection::connect(&database.url).await?;
    let mut seed = 0;
    until("the victim is among the ended", async || {
        seed += 1;
        let injected = inject(&mut backends::Terminated, &stage, seed).await?;
        match sqlx::query("SELECT 1").execute(&mut victim).await {
            Ok(_) => Ok(None),
            Err(error) => {
                assert!(code(&error).is_none_or(|code| code == "57P01"), "{error}");
                assert_ne!(injected.detail, "0 ended");
                Ok(Some(()))
            }
        }
    })
    .await
}

async fn statements_are_cancelled(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    let mut victim = PgConnection::connect(&database.url).await?;
    let waiting = tokio::spawn(async move { sqlx::query("SELECT pg_sleep(100)").execute(&mut victim).await });
    let mut seed = 0;
    until("the victim's statement is among the cancelled", async || {
        seed += 1;
        inject(&mut backends::Cancelled, &stage, seed).await?;
        Ok(waiting.is_finished().then_some(()))
    })
    .await?;
    let error = waiting.await?.err().ok_or("it was not cancelled")?;
    assert_eq!(code(&error).as_deref(), Some("57014"), "{error}");
    Ok(())
}

async fn no_faults_session_is_left(database: &tests::Database<Postgres>) -> Outcome {
    let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND application_name = 'storm-fault'";
    until("the fault's sessions have ended", async || Ok((database.integer(left).await? == 0).then_some(())))
        .await
}
