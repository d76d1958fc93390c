//! Every metric of sagas is recorded with the name, kind and labels of its table.

use super::*;
use saga::{Replied, Run, Stop, telemetry};
use tests::Counters;

tests::cases! { "saga/metrics/{on}/{case}":
    every { every_metric_of_the_table_is_recorded }
    night on_postgres { how_long_a_saga_waits_for_a_worker_is_recorded }
}

/// The metric that a worker records once a minute.
const OVERDUE: &str = "saga_overdue_seconds";

/// Runs a saga that finishes and one that becomes stuck. Returns a worker that continues.
async fn run_both<DB: Tables>(db: &Database<DB>) -> Worker {
    let sagas = sagas(db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, is_undone: i64| {
            saga.step("one", async |_| Ok(()))
                .undo(async |_, (): &()| Err(StepError::retry("the shelf is gone")))
                .await?;
            if is_undone == 0 { Ok(()) } else { Err(Stop::because("closed")) }
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    start(db, &sagas, "finished", 0).await;
    start(db, &sagas, "stuck", 1).await;
    finished(&sagas, "finished").await;
    stuck(&sagas, "stuck").await;
    let key: StepKey = "checkout/nobody/ship".parse().unwrap();
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    assert_eq!(sagas.reply(&mut tx, &key, &"P-1".into()).await.unwrap(), Replied::Nobody);
    tx.commit().await.unwrap();
    worker
}

async fn every_metric_of_the_table_is_recorded<DB: Tables>(db: Database<DB>) {
    let counters = Counters::installed();
    run_both(&db).await.stop().await;
    counters.assert_emitted_but(&[OVERDUE], telemetry::METRICS, "saga_", telemetry::describe);
}

/// Waits for a worker's maintenance, which begins after a minute.
async fn how_long_a_saga_waits_for_a_worker_is_recorded(db: Database<Postgres>) {
    let counters = Counters::installed();
    let worker = run_both(&db).await;
    eventually("a worker maintains its tables", async || {
        Ok(counters.emitted().iter().any(|metric| metric.name == OVERDUE).then_some(()))
    })
    .await
    .unwrap();
    worker.stop().await;
    counters.assert_all_emitted(telemetry::METRICS, "saga_", telemetry::describe);
}
