//! Idempotency keys: claims and their leases, transactions that hold a key, and forgetting.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod begun;
mod cost;
mod dump;
mod effects;
mod erasure;
mod forgetting;
mod http;
mod lease;
mod metrics;
mod standby;
mod tokens;
mod transaction;
mod unknown_commit;

use idempotency::{Claim, ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use message::Fingerprint;
use migrations::Template;
use migrations::query::Query;
use sqlx::{Postgres, Sqlite};
use tests::{Database, Dialect, Outcome, Role, Stage};

tests::cases! {
    modules { begun, cost, effects, erasure, forgetting, http, lease, metrics, tokens, transaction, unknown_commit }
    // A lock timeout of 100 ms decides in `dump`, which a busy machine may exceed without a lock.
    night modules { dump, standby }
}

/// The changes that tests make to the tables, in the SQL of each database.
trait Keys: Dialect {
    /// Ends every lease.
    const LAPSE: &str;
    /// Moves the end of every lease two days ahead, as a wrong clock would have set it.
    const AHEAD: &str;
    /// Ends the retention of every outcome.
    const EXPIRE: &str;
    /// Makes every key 23 hours older.
    const AGE: &str;
    /// Makes every key an hour younger, as if the clock had been set back.
    const SET_BACK: &str;
    const EFFECTS: &str;
    /// Writes an effect in a transaction.
    fn apply(
        connection: &mut Self::Connection,
        payload: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let insert = Template::new("INSERT INTO effect (payload) VALUES ($1)").render();
        async move { Query::<Self>::new(&insert).bind(&payload).run(connection).await.map(drop) }
    }
}

impl Keys for Postgres {
    const LAPSE: &str =
        "UPDATE idempotency_key SET lease_until = now() - interval '1 second' WHERE state = 'in_progress'";
    const AHEAD: &str = "UPDATE idempotency_key SET lease_until = lease_until + interval '2 days'";
    const EXPIRE: &str = "UPDATE idempotency_key SET expires_at = now() - interval '1 second'";
    const AGE: &str = "UPDATE idempotency_key SET claimed_at = claimed_at - interval '23 hours', \
        expires_at = expires_at - interval '23 hours'";
    const SET_BACK: &str = "UPDATE idempotency_key SET claimed_at = claimed_at + interval '1 hour', \
        expires_at = expires_at + interval '1 hour'";
    const EFFECTS: &str = "CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, payload text)";
}

impl Keys for Sqlite {
    const LAPSE: &str = "UPDATE idempotency_key SET lease_until = 1 WHERE state = 'in_progress'";
    const AHEAD: &str = "UPDATE idempotency_key SET lease_until = lease_until + 172800000000";
    const EXPIRE: &str = "UPDATE idempotency_key SET expires_at = 1";
    const AGE: &str = "UPDATE idempotency_key SET claimed_at = claimed_at - 82800000000, \
        expires_at = expires_at - 82800000000";
    const SET_BACK: &str = "UPDATE idempotency_key SET claimed_at = claimed_at + 3600000000, \
        expires_at = expires_at + 3600000000";
    const EFFECTS: &str = "CREATE TABLE effect (id INTEGER PRIMARY KEY, payload TEXT)";
}

/// Runs a case on its own database, then checks for malformed rows.
async fn each<DB: Keys>(stage: Stage, case: impl AsyncFnOnce(Database<DB>)) -> Outcome {
    let db = database::<DB>(&stage).await;
    case(db.clone()).await;
    assert_eq!(db.texts(MALFORMED).await?, [""; 0], "rows that make no sense");
    Ok(())
}

/// Rows that no statement may leave behind, in any case. The tables themselves do not refuse all of
/// them (ADR 19).
const MALFORMED: &str = "SELECT scope || ' ' || operation || ' ' || key || ' ' || state FROM idempotency_key WHERE NOT (
    octet_length(scope) BETWEEN 1 AND 255 AND octet_length(operation) BETWEEN 1 AND 255 AND octet_length(key) BETWEEN 1 AND 255
    AND octet_length(fingerprint) = 32 AND attempt > 0 AND state IN ('in_progress', 'released', 'succeeded', 'failed')
    AND (state = 'in_progress') = (lease_until IS NOT NULL) AND (state <> 'succeeded' OR outcome IS NOT NULL)
    AND (state IN ('succeeded', 'failed')) = (processed_at IS NOT NULL))";

async fn database<DB: Keys>(stage: &Stage) -> Database<DB> {
    let db = Database::<DB>::migrated(stage).await.unwrap();
    db.execute(DB::EFFECTS).await.unwrap();
    db.let_use(Role::Service, "effect").await.unwrap();
    db
}

async fn open<DB: Keys>(db: &Database<DB>) -> IdempotencyKeys<DB> {
    IdempotencyKeys::open(db.service.clone(), KeyOptions::default()).await.unwrap()
}

fn id(scope: &str, operation: &str, key: &str) -> KeyId {
    KeyId::of_texts(scope, operation, key).unwrap()
}

fn key(key: &str) -> KeyId {
    id("tenant-1", "POST /orders", key)
}

fn request(payload: &str) -> Fingerprint {
    Fingerprint::of_parts("POST /orders", "", payload.as_bytes())
}

/// Claims a key with the default policy.
async fn claim<DB: Keys>(keys: &IdempotencyKeys<DB>, name: &str, payload: &str) -> Claimed<Claim<DB>> {
    keys.claim(&key(name), request(payload), &ClaimOptions::default()).await.unwrap()
}

/// Runs one request from begin to commit, with its own name as its effect. Returns the word for its
/// result.
async fn run<DB: Keys>(keys: &IdempotencyKeys<DB>, name: &str) -> &'static str {
    let claimed = keys.begin(&key(name), request(name), &ClaimOptions::default()).await.unwrap();
    let word = claimed.as_str();
    if let Claimed::Acquired(mut tx) = claimed {
        DB::apply(&mut tx, name.to_owned()).await.unwrap();
        tx.commit(Ending::Succeeded, name.as_bytes()).await.unwrap();
    }
    word
}

async fn effects<DB: Keys>(db: &Database<DB>, payload: &str) -> i64 {
    db.integer(&format!("SELECT count(*) FROM effect WHERE payload = '{payload}'")).await.unwrap()
}

/// Returns a column of the row as a text.
async fn column<DB: Keys>(db: &Database<DB>, name: &str, column: &str) -> Vec<String> {
    db.texts(&format!("SELECT CAST({column} AS text) FROM idempotency_key WHERE key = '{name}'"))
        .await
        .unwrap()
}
