//! A web service whose requests may be sent again: idempotency key, order, message and stored response commit together.
//!
//! `DATABASE_URL=postgres://… LISTEN=127.0.0.1:8080 cargo run -p examples --bin orders_api`, then see
//! `docs/idempotency-keys.md` for what to ask it.

use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use examples::order::OrderPlaced;
use examples::setting::{Failure, optional, required};
use inbox::Scope;
use inbox::http::{HeldTransaction, IdempotencyLayer};
use inbox::keys::{IdempotencyKeys, KeyOptions};
use migrations::{Line, Migrator};
use outbox::{NewMessage, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<Postgres>,
}

#[derive(Deserialize)]
struct NewOrder {
    cents: i64,
}

#[derive(Serialize)]
struct Placed {
    order: i64,
    cents: i64,
}

/// Everything that goes wrong in a handler. A 5xx is not stored, and the transaction is rolled back.
struct Refused(Failure);

impl<E: Into<Failure>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        eprintln!("orders_api: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// Everything that is written through `held` commits together with the key and this handler's answer.
async fn place_order(
    State(shop): State<Shop>,
    Extension(held): Extension<HeldTransaction<Postgres>>,
    Json(NewOrder { cents }): Json<NewOrder>,
) -> Result<Response, Refused> {
    if cents > 100_000 {
        // A 4xx is stored as well: the same request gets the same refusal.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "over the customer's limit\n").into_response());
    }
    let mut tx = held.lock().await?;
    let order: i64 = sqlx::query_scalar("INSERT INTO orders (cents) VALUES ($1) RETURNING id")
        .bind(cents)
        .fetch_one(&mut **tx)
        .await?;
    let event = OrderPlaced { order, cents };
    let message = NewMessage::new("orders").kind(OrderPlaced::KIND).key(event.key()).json(&event);
    shop.outbox.enqueue(&mut tx, message).await?;
    let place = [(header::LOCATION, format!("/orders/{order}"))];
    Ok((StatusCode::CREATED, place, Json(Placed { order, cents })).into_response())
}

async fn count_orders(State(shop): State<Shop>) -> Result<String, Refused> {
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&shop.pool).await?;
    let messages: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox_message").fetch_one(&shop.pool).await?;
    Ok(format!("{orders} orders, {messages} messages\n"))
}

/// Whose request it is. A real service takes it from what authentication has left in the request's extensions.
fn tenant(request: &Parts) -> Option<Scope> {
    let token = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Scope::new(token).ok()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let pool = outbox::pool::<Postgres>(&required("DATABASE_URL")?).await?;
    prepare(&pool).await?;

    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let once = IdempotencyLayer::transactional(keys, "/orders", tenant)?;
    let app = Router::new()
        .route("/orders", post(place_order))
        .route_layer(once)
        .route("/", get(count_orders))
        .with_state(Shop { pool, outbox: Outbox::new() });

    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// A service would do this in its deployment: `relay migrate up`.
async fn prepare(pool: &PgPool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await?;
    for line in [Line::Outbox, Line::Idempotency] {
        Migrator::<Postgres>::new(line).up(&mut connection).await?;
    }
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents bigint NOT NULL)",
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}
