//! Every metric of idempotency keys is recorded with the name, kind and labels of its table.

use tests::Counters;

use super::*;

tests::cases! { "keys/metrics/{on}/{case}":
    every { every_metric_of_the_table_is_recorded }
}

async fn every_metric_of_the_table_is_recorded<DB: Keys>(db: Database<DB>) {
    let counters = Counters::installed();
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    let Claimed::Acquired(late) = claim(&keys, "late", "a").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().leases_expired, 1);
    let Claimed::Acquired(next) = claim(&keys, "late", "a").await else { panic!() };
    assert!(late.complete(Ending::Succeeded, b"late").await.is_err());
    next.complete(Ending::Succeeded, b"next").await.unwrap();
    db.execute(DB::EXPIRE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().forgotten, 2);
    counters.assert_all_emitted(
        idempotency::telemetry::METRICS,
        "idempotency_",
        idempotency::telemetry::describe,
    );
}
