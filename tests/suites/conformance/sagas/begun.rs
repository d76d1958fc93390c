//! Calls that are dropped while their transaction begins.

use super::*;
use crate::begun::Line;
use saga::{Run, SagaQuery};

saga_cases! { "saga/begun": ;
    postgres { dropped_lists_leave_no_transaction, a_dropped_worker_leaves_no_transaction }
    postgres_at_night {}
}

async fn dropped_lists_leave_no_transaction(db: Database<Postgres>) {
    let line = Line::beside(&db.service).await;
    let sagas = Sagas::builder(line.pool.clone(), Outbox::new()).open().await.unwrap();
    let query = SagaQuery::open(std::num::NonZeroU32::MIN);
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
