//! The service, with one route for each variant.

use std::net::SocketAddr;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Extension, Json, Router};
use idempotency::http::{HeldTransaction, IdempotencyLayer};
use idempotency::{IdempotencyKeys, KeyOptions};
use inbox::Tenant;
use outbox::{NewMessage, Outbox};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Handler, Variant};
use crate::Failure;

pub(super) const TABLES: &str = "
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL);
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(0, 9999) AS n;
CREATE TABLE articles (id bigint PRIMARY KEY, cents bigint NOT NULL, stock bigint NOT NULL);
INSERT INTO articles SELECT n, 100 + n, 1000000 FROM generate_series(0, 9999) AS n;
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL, articles bigint NOT NULL);
CREATE TABLE order_lines (
    order_id bigint NOT NULL, article bigint NOT NULL, quantity bigint NOT NULL, cents bigint NOT NULL,
    PRIMARY KEY (order_id, article));
CREATE TABLE key_by_hand (
    tenant text, operation text, key text, fingerprint bytea NOT NULL, response bytea,
    claimed_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz, PRIMARY KEY (tenant, operation, key));
-- The deletion of old keys needs it.
CREATE INDEX ON key_by_hand (claimed_at);
ANALYZE";

/// A running service.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    task: JoinHandle<std::io::Result<()>>,
    pool: PgPool,
}

impl Service {
    pub(super) async fn stop(self) {
        self.task.abort();
        self.pool.close().await;
    }
}

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<Postgres>,
    handler: Handler,
}

#[derive(Serialize, Deserialize)]
struct NewOrder {
    customer: i64,
    /// Articles with their quantities, in ascending order, so that concurrent requests cannot
    /// deadlock.
    lines: Vec<(i64, i64)>,
}

#[derive(Serialize)]
struct Placed {
    order: i64,
}

struct Refused(Failure);

impl<E: Into<Failure>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl axum::response::IntoResponse for Refused {
    fn into_response(self) -> axum::response::Response {
        eprintln!("bench: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

type Answer = Result<(StatusCode, Json<Placed>), Refused>;

/// Places an order and announces it, in the variants without a key.
async fn place(shop: &Shop, tx: &mut Transaction<'_, Postgres>, order: &NewOrder) -> Answer {
    let placed = write(shop, &mut *tx, order).await?;
    shop.outbox.enqueue(tx, announced(&placed, order)).await?;
    Ok((StatusCode::CREATED, Json(placed)))
}

fn announced(placed: &Placed, order: &NewOrder) -> NewMessage {
    NewMessage::new("orders").key(format!("order-{}", placed.order)).json(order)
}

/// Writes the rows of an order, in every variant.
async fn write(shop: &Shop, connection: &mut PgConnection, order: &NewOrder) -> Result<Placed, Refused> {
    if shop.handler == Handler::Checkout {
        let _name: String = sqlx::query_scalar("SELECT name FROM customers WHERE id = $1")
            .bind(order.customer)
            .fetch_one(&mut *connection)
            .await?;
    }
    let articles: i64 = order.lines.iter().map(|(_, quantity)| quantity).sum();
    let id: i64 = sqlx::query_scalar("INSERT INTO orders (customer, articles) VALUES ($1, $2) RETURNING id")
        .bind(order.customer)
        .bind(articles)
        .fetch_one(&mut *connection)
        .await?;
    if shop.handler == Handler::Checkout {
        for (article, quantity) in &order.lines {
            take(&mut *connection, id, *article, *quantity).await?;
        }
    }
    Ok(Placed { order: id })
}

/// Takes an article from the stock, and writes the order line.
async fn take(
    connection: &mut PgConnection,
    order: i64,
    article: i64,
    quantity: i64,
) -> Result<(), sqlx::Error> {
    let cents: i64 = sqlx::query_scalar(
        "UPDATE articles SET stock = stock - $2 WHERE id = $1 AND stock >= $2 RETURNING cents",
    )
    .bind(article)
    .bind(quantity)
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query("INSERT INTO order_lines (order_id, article, quantity, cents) VALUES ($1, $2, $3, $4)")
        .bind(order)
        .bind(article)
        .bind(quantity)
        .bind(cents)
        .execute(connection)
        .await?;
    Ok(())
}

async fn bare(State(shop): State<Shop>, Json(order): Json<NewOrder>) -> Answer {
    let mut tx = shop.pool.begin().await?;
    let placed = place(&shop, &mut tx, &order).await?;
    tx.commit().await?;
    Ok(placed)
}

/// The minimum for a layer that asks before the handler and reports after it: two statements that
/// do nothing.
async fn asked(State(shop): State<Shop>, Json(order): Json<NewOrder>) -> Answer {
    let mut tx = shop.pool.begin().await?;
    sqlx::query("SELECT 1").execute(&mut *tx).await?;
    let placed = place(&shop, &mut tx, &order).await?;
    sqlx::query("SELECT 2").execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(placed)
}

async fn by_hand(State(shop): State<Shop>, headers: HeaderMap, body: Bytes) -> Answer {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).ok_or("no key")?;
    let order: NewOrder = serde_json::from_slice(&body)?;
    let mut tx = shop.pool.begin().await?;
    let claimed = sqlx::query(
        "INSERT INTO key_by_hand (tenant, operation, key, fingerprint) VALUES ('tenant', '/by-hand', $1, $2) \
         ON CONFLICT DO NOTHING",
    )
    .bind(key)
    .bind(&Sha256::digest(&body)[..])
    .execute(&mut *tx)
    .await?;
    if claimed.rows_affected() == 0 {
        return Err(Refused("a key came twice".into()));
    }
    let placed = place(&shop, &mut tx, &order).await?;
    sqlx::query(
        "UPDATE key_by_hand SET response = $2, processed_at = now() \
         WHERE tenant = 'tenant' AND operation = '/by-hand' AND key = $1",
    )
    .bind(key)
    .bind(serde_json::to_vec(&placed.1.0)?)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(placed)
}

async fn keyed(
    State(shop): State<Shop>,
    Extension(held): Extension<HeldTransaction<Postgres>>,
    Json(order): Json<NewOrder>,
) -> Answer {
    let mut tx = held.lock().await?;
    let placed = write(&shop, &mut tx, &order).await?;
    tx.enqueue(announced(&placed, &order)).await?;
    Ok((StatusCode::CREATED, Json(placed)))
}

pub(super) async fn start(url: &str, connections: usize) -> Result<Service, Failure> {
    // A plain pool: the toolkit's pool checks every returned connection, which would cost both
    // sides the same.
    let connections = u32::try_from(connections)?;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(connections).connect(url).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?.with_outbox(Outbox::new());
    let mut app = Router::new();
    for handler in Handler::ALL {
        // Operations differ by method and name, so each handler has its own name.
        let keyed_path = Variant::Keyed.path(handler);
        let layer =
            IdempotencyLayer::transactional(keys.clone(), keyed_path, |_| Tenant::new("tenant").ok())?;
        let routes = Router::new()
            .route(keyed_path, post(keyed))
            .route_layer(layer)
            .route(Variant::Bare.path(handler), post(bare))
            .route(Variant::Asked.path(handler), post(asked))
            .route(Variant::ByHand.path(handler), post(by_hand))
            .with_state(Shop { pool: pool.clone(), outbox: Outbox::new(), handler });
        app = app.merge(routes);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(Service { address, task, pool })
}
