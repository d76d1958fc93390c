//! Calls that are dropped while their transaction begins, by their caller or by their time limit.

use std::num::NonZeroU32;

use super::*;
use crate::begun::Line;
use saga::{Run, SagaQuery, Stop};

tests::cases! { "saga/begun/{on}/{case}":
    on_postgres {
        dropped_lists_leave_no_transaction,
        a_dropped_worker_leaves_no_transaction,
        a_late_begin_of_a_saga_loses_no_later_write,
        a_late_begin_of_a_step_loses_no_later_write,
    }
}

async fn dropped_lists_leave_no_transaction(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let sagas = Sagas::builder(line.pool.clone(), Outbox::new()).open().await.unwrap();
    let query = SagaQuery::open(NonZeroU32::MIN);
    line.arm();
    line.drop_while_it_begins(&db.admin, sagas.list(&query)).await;
    line.arm();
    line.drop_while_it_begins(&db.admin, sagas.overdue(Duration::ZERO)).await;
    line.pool.close().await;
}

async fn a_dropped_worker_leaves_no_transaction(db: Database<Postgres>) {
    let line = Arc::new(Line::beside(&db.service).await);
    let here = Arc::clone(&line);
    let code = async move |saga: &mut Run<Postgres>, _: i64| {
        here.arm();
        saga.step("one", async |tx| Ok(Postgres::apply(tx, String::from("one")).await?)).await
    };
    let sagas = Sagas::builder(line.pool.clone(), Outbox::new()).options(fast());
    let sagas = sagas.saga("checkout", 1, code).open().await.unwrap();
    start(&db, &sagas, "a", 0).await;
    line.drop_while_it_begins(&db.admin, sagas.run(std::future::pending())).await;
    line.pool.close().await;
}

/// Goal: the time limit of a call leaves no session inside a transaction. Oracle: another session
/// sees what the next users of the pool write.
async fn a_late_begin_of_a_saga_loses_no_later_write(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let code = async |_: &mut Run<Postgres>, _: i64| Ok::<_, Stop>(());
    let sagas = Sagas::builder(line.pool.clone(), Outbox::new()).options(fast().call_timeout(Line::LIMIT));
    let sagas = sagas.saga("checkout", 1, code).open().await.unwrap();
    start(&db, &sagas, "a", 0).await;
    line.outlast(&db.admin, sagas.cancel(&id("a"), &operators::alice())).await;
    line.outlast(&db.admin, sagas.wake_stranded()).await;
    let query = SagaQuery::open(NonZeroU32::MIN);
    line.outlast(&db.admin, sagas.list(&query)).await;
    line.pool.close().await;
}

async fn a_late_begin_of_a_step_loses_no_later_write(db: Database<Postgres>) {
    let line = Arc::new(Line::beside(&db.service).await);
    let (here, runs) = (Arc::clone(&line), Counter::default());
    let counted = runs.clone();
    let code = async move |saga: &mut Run<Postgres>, _: i64| {
        if counted.up() == 1 {
            here.arm();
        } else {
            here.withheld().await;
        }
        saga.step("one", async |tx| Ok(Postgres::apply(tx, String::from("one")).await?)).await
    };
    let sagas = Sagas::builder(line.pool.clone(), Outbox::new()).options(fast().call_timeout(Line::LIMIT));
    let (sagas, worker) = begun(&db, sagas.saga("checkout", 1, code), 0).await;
    finished(&sagas, "a").await;
    worker.stop().await;
    assert_eq!(runs.get(), 2, "the first run waits for its transaction up to the limit");
    line.answer_late(&db.admin).await;
    line.pool.close().await;
}
