//! The cost of keys: rows that PostgreSQL reads, and round trips to it.

use super::*;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use idempotency::http::{HeldTransaction, IdempotencyLayer};
use inbox::Tenant;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tests::Outcome;
use tests::log_capture::{LogCapture, PING, PREPARE};
use tower_service::Service as _;

tests::cases! { "keys/cost/{on}/{case}":
    postgres {
        a_key_costs_two_round_trips,
        a_key_costs_the_same_however_many_there_are = however_many_there_are,
        forgetting_walks_no_key_that_waits_for_an_operator = however_many_wait,
    }
}

const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT set_config('idle_in";
/// The beginnings of the statements on the wire.
const CLAIM: &str = "INSERT INTO idempotency_key (";
const LOOK: &str = "SELECT current_setting('idempotency.holder', true) = ";
const OUTCOME: &str = "INSERT INTO idempotency_key AS k (";
const EFFECT: &str = "INSERT INTO effect (payload) VALUES ($1)";

/// The numbers of keys in a small table and in a large one.
const FEW: u32 = 20;
const MANY: u32 = 20_000;

/// Goal: when a session's plans date from a time with few keys, it still finds a key through the
/// index after there are many. Oracle: the server's count of rows that were read without an index.
async fn however_many_there_are(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    db.execute("ALTER TABLE idempotency_key SET (autovacuum_enabled = false)").await?;
    let fill = |from: u32, to: u32| {
        format!(
            "INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at, \
             processed_at, expires_at) SELECT 'tenant-1', 'POST /orders', 'k' || n, sha256('x'), 'succeeded', 1, \
             gen_random_uuid(), 'x', now(), now(), now() + interval '1 day' FROM generate_series({from}, {to}) AS n"
        )
    };
    // An ANALYZE now makes the planner believe that the table has a page or two.
    db.execute(&fill(1, FEW)).await?;
    db.execute("ANALYZE idempotency_key").await?;
    let options: PgConnectOptions = Postgres::url_of(Role::Service, &db.url)?.parse()?;
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    // From the sixth execution on, PostgreSQL may keep a generic plan.
    for round in 0..16 {
        if round == 8 {
            db.execute(&fill(FEW + 1, MANY)).await?;
        }
        let name = format!("new-{round}");
        assert_eq!([run(&keys, &name).await, run(&keys, &name).await], ["acquired", "replay"]);
        let Claimed::Acquired(lease) = claim(&keys, &format!("lease-{round}"), "a").await else { panic!() };
        lease.complete(Ending::Succeeded, b"x").await?;
        keys.maintain().await?;
    }
    // A session reports its statistics at the latest when it ends.
    pool.close().await;
    let counted = "SELECT idx_scan::bigint FROM pg_stat_user_tables WHERE relname = 'idempotency_key'";
    let scans = tests::eventually("it has told", async || {
        Ok(Some(db.integer(counted).await?).filter(|scans| *scans >= 8))
    });
    let by_index = scans.await?;
    let read = db.integer(&counted.replace("idx_scan", "seq_tup_read")).await?;
    eprintln!("{by_index} looks by an index, {read} rows read without one");
    assert!(read < i64::from(MANY), "{read} rows read without an index");
    Ok(())
}

/// Goal: a batch that forgets does not walk the keys that wait for an operator, which are older
/// than all others and stay. Oracle: the server's count of entries that were read from the index.
async fn however_many_wait(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    db.execute("ALTER TABLE idempotency_key SET (autovacuum_enabled = false)").await?;
    let fill = |key: &str, count: u32, rest: &str| {
        format!(
            "INSERT INTO idempotency_key (scope, operation, key, fingerprint, attempt, holder, claimed_at, state, \
             outcome, processed_at, expires_at, lease_until, refuses, reported_at) SELECT 'tenant-1', 'POST /orders', \
             '{key}' || n, sha256('x'), 1, gen_random_uuid(), now() - interval '3 hours', {rest} \
             FROM generate_series(1, {count}) AS n"
        )
    };
    let waits =
        "'in_progress', NULL, NULL, now() - interval '2 hours', now() - interval '1 hour', true, now()";
    let settled = "'succeeded', 'x'::bytea, now(), now() - interval '1 hour', NULL, true, NULL";
    db.execute(&fill("waits", MANY, waits)).await?;
    db.execute(&fill("settled", FEW, settled)).await?;
    db.execute("ANALYZE idempotency_key").await?;
    let options: PgConnectOptions = Postgres::url_of(Role::Service, &db.url)?.parse()?;
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    assert_eq!(keys.maintain().await?.forgotten, u64::from(FEW));
    assert_eq!(db.integer("SELECT count(*) FROM idempotency_key").await?, i64::from(MANY));
    // A session reports its statistics at the latest when it ends.
    pool.close().await;
    let counted = "SELECT idx_scan::bigint FROM pg_stat_user_indexes \
        WHERE indexrelname = 'idempotency_key_expires_idx'";
    tests::eventually("it has told", async || {
        Ok(Some(db.integer(counted).await?).filter(|scans| *scans >= 1))
    })
    .await?;
    let read = db.integer(&counted.replace("idx_scan", "idx_tup_read")).await?;
    eprintln!("{read} entries read from the index");
    assert!(read < 1_000, "{read} entries read from the index");
    Ok(())
}

async fn bare(State(pool): State<PgPool>, body: String) -> StatusCode {
    let mut tx = pool.begin().await.unwrap();
    Postgres::apply(&mut tx, body).await.unwrap();
    tx.commit().await.unwrap();
    StatusCode::CREATED
}

async fn keyed(Extension(held): Extension<HeldTransaction<Postgres>>, body: String) -> StatusCode {
    Postgres::apply(&mut *held.lock().await.unwrap(), body).await.unwrap();
    StatusCode::CREATED
}

async fn send(router: &Router, path: &str, key: &str) -> StatusCode {
    let request = Request::post(path).header("idempotency-key", key).body(Body::from("x")).unwrap();
    router.clone().call(request).await.unwrap().status()
}

/// Goal: a request with a key needs two more statements than a request without a key: its claim and
/// its outcome. A replay also reads the stored answer, with a plan made for that query, and stores
/// nothing. Oracle: the messages on the wire.
async fn a_key_costs_two_round_trips(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    let options: PgConnectOptions = Postgres::url_of(Role::Service, &db.url)?.parse()?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let (log_capture, port) = LogCapture::before(&stage, &server).await?;
    let options = options.host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
    // One connection, so that no statement is prepared twice. The pool does not ping it on return,
    // so a statement after an answer belongs to the next request.
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let once = IdempotencyLayer::transactional(keys, "/keyed", |_| Tenant::new("tenant").ok())?;
    let router = Router::new()
        .route("/keyed", post(keyed).layer(once))
        .route("/bare", post(bare))
        .with_state(pool.clone());
    // The first requests prepare the statements.
    for (path, key, expected) in [
        ("/bare", "warm", None),
        ("/keyed", "warm", None),
        ("/keyed", "warm", None),
        ("/bare", "k", Some(&["BEGIN", EFFECT, "COMMIT"][..])),
        ("/keyed", "k", Some(&[BEGIN, CLAIM, EFFECT, OUTCOME, "COMMIT"])),
        ("/keyed", "k", Some(&[BEGIN, CLAIM, PREPARE, LOOK, "ROLLBACK"])),
    ] {
        // Once the connection is back in the pool, every statement of the previous request has
        // finished.
        drop(pool.acquire().await?);
        let _ = log_capture.take();
        assert_eq!(send(&router, path, key).await, StatusCode::CREATED);
        drop(pool.acquire().await?);
        let told: Vec<String> = log_capture.take().into_iter().filter(|said| said != PING).collect();
        if let Some(expected) = expected {
            let begins = told.len() == expected.len()
                && told.iter().zip(expected).all(|(said, begin)| said.starts_with(begin));
            assert!(begins, "{path}: expected {expected:?}, told {told:?}");
        }
    }
    pool.close().await;
    Ok(())
}
