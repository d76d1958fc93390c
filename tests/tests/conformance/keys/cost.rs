//! What keys cost: in buffers of PostgreSQL, and in round trips to it.

use super::*;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use inbox::Scope;
use inbox::http::{HeldTransaction, IdempotencyLayer};
use libtest_mimic::Trial;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{PgConnection, PgPool};
use tests::tap::{PING, Tap};
use tests::{Failure, Outcome};
use tower_service::Service as _;

pub(super) fn trials() -> Vec<Trial> {
    let on = |name| format!("keys/cost/postgres/{name}");
    let needs = &[Backend::Postgres];
    vec![
        trial(on("a_key_costs_two_round_trips"), needs, a_key_costs_two_round_trips),
        trial(on("a_key_costs_the_same_however_many_there_are"), needs, however_many_there_are),
    ]
}

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// How what is said to the database begins.
const HOLD: &str = "SELECT CASE WHEN pg_try_advisory_xact_lock(";
const OUTCOME: &str = "INSERT INTO idempotency_key_0 ";
const CLAIM: &str = "SELECT * FROM idempotency_claim(";
const EFFECT: &str = "INSERT INTO effect (payload) VALUES ($1)";

/// More than each lookup touches, in the three slots and their indexes, and far less than a slot has.
const BUFFERS_MAX: i64 = 100;

/// The buffers that a statement touches, told by the server.
async fn buffers(session: &mut PgConnection, sql: &str) -> Result<i64, Failure> {
    let told = Postgres::texts(session, &format!("EXPLAIN (ANALYZE, BUFFERS) {sql}")).await?;
    // That of the whole statement comes first.
    let line = told.iter().find_map(|line| line.split_once("Buffers: shared ")).ok_or("no buffers")?;
    let count = |part: &str| part.split_once('=').and_then(|(_, count)| count.parse::<i64>().ok());
    let parts = line.1.split(' ').filter(|part| part.starts_with("hit") || part.starts_with("read"));
    Ok(parts.filter_map(count).sum())
}

/// Goal: a session that has made its plans while there were few keys looks for a key by the index when there are many.
/// Oracle: the server's count of buffers.
async fn however_many_there_are(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    db.execute("ALTER TABLE idempotency_key_0 SET (autovacuum_enabled = false)").await?;
    let fill = |from: u32, to: u32| {
        format!(
            "INSERT INTO idempotency_key (slot, scope, operation, key, fingerprint, state, attempt, holder, outcome, \
             claimed_at, processed_at, expires_at) SELECT 0, 'tenant-1', 'POST /orders', 'k' || n, sha256('x'), \
             'succeeded', 1, gen_random_uuid(), 'x', now(), now(), now() + interval '1 day' FROM generate_series({from}, {to}) AS n"
        )
    };
    // Whoever analyses the table now tells the planner that it has a page or two.
    db.execute(&fill(1, 20)).await?;
    db.execute("ANALYZE idempotency_key").await?;
    let mut service = db.service.acquire().await?;
    let mut each = async || -> Result<[i64; 3], Failure> {
        let look = "SELECT idempotency_slot_of_new('tenant-1', 'POST /orders', 'new')";
        let claim = "SELECT idempotency_claim('tenant-1', 'POST /orders', 'new', sha256('x'), gen_random_uuid(), '1h', \
             true, NULL, '1m')";
        let complete = "SELECT idempotency_complete('tenant-1', 'POST /orders', 'k7', gen_random_uuid(), 'succeeded', \
             'x', NULL)";
        Ok([
            buffers(&mut service, look).await?,
            buffers(&mut service, claim).await?,
            buffers(&mut service, complete).await?,
        ])
    };
    // A plan is kept from the sixth use on.
    for _ in 0..8 {
        each().await?;
    }
    let few = each().await?;
    db.execute(&fill(21, 20_000)).await?;
    let many = each().await?;
    eprintln!("buffers of a look, a claim and a completion: {few:?} among 20, {many:?} among 20,000");
    assert!(few.iter().all(|buffers| *buffers > 0), "nothing was measured");
    assert!(many.iter().all(|buffers| *buffers < BUFFERS_MAX), "{few:?}, then {many:?}");
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

/// Goal: a request with a key says two things more to the database than one without: its claim and its outcome. A replay asks
/// twice, and stores nothing. Oracle: the messages on the wire.
async fn a_key_costs_two_round_trips(stage: Stage) -> Outcome {
    let db = database::<Postgres>(&stage).await;
    let options: PgConnectOptions = Postgres::url_of(Role::Service, &db.url)?.parse()?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let (tap, port) = Tap::before(&stage, &server).await?;
    let options = options.host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
    // One connection, so that nothing is prepared a second time; and no look at it when it is given back, so that whatever
    // comes after an answer belongs to the next request.
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let once = IdempotencyLayer::transactional(keys, "/keyed", |_| Scope::new("tenant").ok())?;
    let router = Router::new()
        .route("/keyed", post(keyed).layer(once))
        .route("/bare", post(bare))
        .with_state(pool.clone());
    // The first ones prepare their statements.
    for (path, key, expected) in [
        ("/bare", "warm", None),
        ("/keyed", "warm", None),
        ("/keyed", "warm", None),
        ("/bare", "k", Some(&["BEGIN", EFFECT, "COMMIT"][..])),
        ("/keyed", "k", Some(&[BEGIN, HOLD, EFFECT, OUTCOME, "COMMIT"])),
        ("/keyed", "k", Some(&[BEGIN, HOLD, CLAIM, "ROLLBACK"])),
    ] {
        // Everything of an earlier request is over once the connection is there again.
        drop(pool.acquire().await?);
        let _ = tap.take();
        assert_eq!(send(&router, path, key).await, StatusCode::CREATED);
        drop(pool.acquire().await?);
        let told: Vec<String> = tap.take().into_iter().filter(|said| said != PING).collect();
        if let Some(expected) = expected {
            let begins = told.len() == expected.len()
                && told.iter().zip(expected).all(|(said, begin)| said.starts_with(begin));
            assert!(begins, "{path}: expected {expected:?}, told {told:?}");
        }
    }
    pool.close().await;
    Ok(())
}
