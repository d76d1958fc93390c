//! A bank that honours keys. Under one key it charges once and refunds once. After a refund it
//! refuses a charge with that key, even if it had not seen the key before.
//!
//! `DATABASE_URL=postgres://… LISTEN=127.0.0.1:8090 cargo run -p examples --bin bank`

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use examples::broken::Broken;
use examples::database::prepared;
use examples::setting::{Failure, optional};
use sqlx::PgPool;
use tokio::net::TcpListener;

/// Every movement of money is a row: only the keys prevent a second one.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS charge (key text PRIMARY KEY, cents bigint NOT NULL, state text NOT NULL);
    CREATE TABLE IF NOT EXISTS movement (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, cents bigint NOT NULL);";

const LIMIT_CENTS: i64 = 100_000;

fn key(headers: &HeaderMap) -> Result<String, Failure> {
    let key = headers.get("idempotency-key").ok_or_else(|| anyhow::anyhow!("no Idempotency-Key"))?;
    Ok(key.to_str()?.trim_matches('"').to_owned())
}

async fn charge(State(pool): State<PgPool>, headers: HeaderMap, body: String) -> Result<Response, Broken> {
    let (key, cents) = (key(&headers)?, body.parse::<i64>()?);
    if !(1..=LIMIT_CENTS).contains(&cents) {
        return Ok((StatusCode::PAYMENT_REQUIRED, "over the customer's limit\n").into_response());
    }
    let mut tx = pool.begin().await?;
    // Waits for a concurrent request with the same key.
    let new = "INSERT INTO charge (key, cents, state) VALUES ($1, $2, 'charged') ON CONFLICT DO NOTHING";
    if sqlx::query(new).bind(&key).bind(cents).execute(&mut *tx).await?.rows_affected() > 0 {
        book(&mut tx, &key, cents).await?;
    }
    let known = "SELECT cents, state FROM charge WHERE key = $1";
    let (charged, state): (i64, String) = sqlx::query_as(known).bind(&key).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    if state != "charged" {
        return Ok((StatusCode::GONE, "this charge was taken back before\n").into_response());
    }
    if charged != cents {
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "this key is that of another charge\n").into_response());
    }
    Ok((StatusCode::CREATED, format!("{key}: {cents} cents")).into_response())
}

async fn refund(State(pool): State<PgPool>, headers: HeaderMap) -> Result<StatusCode, Broken> {
    let key = key(&headers)?;
    let mut tx = pool.begin().await?;
    // A later charge is refused.
    let bar = "INSERT INTO charge (key, cents, state) VALUES ($1, 0, 'refunded') ON CONFLICT DO NOTHING";
    sqlx::query(bar).bind(&key).execute(&mut *tx).await?;
    let refund = "UPDATE charge SET state = 'refunded' WHERE key = $1 AND state = 'charged' RETURNING cents";
    let refunded: Option<i64> = sqlx::query_scalar(refund).bind(&key).fetch_optional(&mut *tx).await?;
    if let Some(cents) = refunded {
        book(&mut tx, &key, -cents).await?;
    }
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

async fn book(connection: &mut sqlx::PgConnection, key: &str, cents: i64) -> sqlx::Result<()> {
    let book = "INSERT INTO movement (key, cents) VALUES ($1, $2)";
    sqlx::query(book).bind(key).bind(cents).execute(connection).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let pool = prepared(&[], TABLES).await?;
    let app = Router::new().route("/charges", post(charge)).route("/refunds", post(refund)).with_state(pool);
    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8090")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
