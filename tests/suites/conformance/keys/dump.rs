//! A `pg_dump` that runs beside requests. It holds ACCESS SHARE locks on every table until it ends.

use std::time::{Duration, Instant};

use super::*;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tests::Outcome;

tests::cases! { "keys/dump/{on}/{case}":
    postgres { a_dump_delays_no_request = delays_none }
}

/// The maximum wait of a request for a lock. The server refuses statements that would wait longer.
const LOCK_TIMEOUT: &str = "100ms";
/// The number of requests of each kind.
const REQUESTS: usize = 500;
/// The number of requests between two rounds of maintenance.
const ROUND: usize = 20;

/// Returns the median and the 99th percentile of the requests' durations, in milliseconds.
fn percentiles(mut took: Vec<Duration>) -> [f64; 2] {
    took.sort_unstable();
    [took.len() / 2, took.len() * 99 / 100].map(|at| took[at].as_secs_f64() * 1e3)
}

/// Goal: forgetting old keys needs no lock that conflicts with a dump, so no request waits for it.
/// Oracle: the server refuses statements that wait for a lock, and no request is refused. The test
/// also prints the durations of requests with and without a dump, measured alternately.
async fn delays_none(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    let options: PgConnectOptions = Postgres::url_of(Role::Service, &db.url)?.parse()?;
    let options = options.options([("lock_timeout", LOCK_TIMEOUT)]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let maintaining = open(&db).await;
    let mut dump = db.admin.acquire().await?;
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..2 * REQUESTS / ROUND {
        let is_dumped = round % 2 == 1;
        let mut tx = dump.begin().await?;
        if is_dumped {
            <Postgres as Dialect>::execute(&mut tx, "LOCK TABLE idempotency_key IN ACCESS SHARE MODE")
                .await?;
        }
        db.execute(Postgres::EXPIRE).await?;
        let maintained = tokio::spawn({
            let keys = maintaining.clone();
            async move { keys.maintain().await.map(drop) }
        });
        for request in 0..ROUND {
            let began = Instant::now();
            assert_eq!(run(&keys, &format!("{round}-{request}")).await, "acquired");
            took[usize::from(is_dumped)].push(began.elapsed());
        }
        maintained.await??;
        tx.rollback().await?;
    }
    let [without, with] = took.map(percentiles);
    println!("p50 and p99 in ms: {without:?} without a dump, {with:?} during one");
    pool.close().await;
    Ok(())
}
