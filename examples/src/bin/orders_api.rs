//! A web service whose clients may repeat their requests. An order, its message, its idempotency
//! key and the stored response commit together. A charge is made by another service, which gets the
//! key as well.
//!
//! `DATABASE_URL=postgres://… LISTEN=127.0.0.1:8080 cargo run -p examples --bin orders_api`, then see
//! `docs/idempotency-keys.md` for requests to try.

use std::time::Duration;

use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use examples::broken::Broken;
use examples::database::prepared;
use examples::order::OrderPlaced;
use examples::provider::{Declined, Provider};
use examples::setting::{Failure, optional};
use idempotency::http::{HeldTransaction, IdempotencyLayer, LeasedKey};
use idempotency::{ClaimOptions, IdempotencyKeys, KeyOptions};
use inbox::Tenant;
use migrations::Line;
use outbox::Outbox;
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, Postgres};
use tokio::net::TcpListener;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents bigint NOT NULL)";

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    provider: Provider,
}

/// The amount of an order or a charge.
#[derive(Deserialize)]
struct Amount {
    cents: i64,
}

#[derive(Serialize)]
struct Placed {
    order: i64,
    cents: i64,
}

/// Places an order. Everything written through `held` commits together with the key and the
/// response of this handler.
///
/// A [`Broken`] is a 5xx and is not stored. A transaction is rolled back. A lease is released,
/// because the provider honours its key; if it did not, the route would need `OnExpired::Refuse`.
async fn place_order(
    Extension(held): Extension<HeldTransaction<Postgres>>,
    Json(Amount { cents }): Json<Amount>,
) -> Result<Response, Broken> {
    if cents > 100_000 {
        // A 4xx is stored as well: the same request gets the same refusal. Earlier writes would be
        // rolled back.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "over the customer's limit\n").into_response());
    }
    let mut tx = held.lock().await?;
    let order: i64 = sqlx::query_scalar("INSERT INTO orders (cents) VALUES ($1) RETURNING id")
        .bind(cents)
        .fetch_one(&mut **tx)
        .await?;
    tx.enqueue(&OrderPlaced { order, cents }).await?;
    let place = [(header::LOCATION, format!("/orders/{order}"))];
    Ok((StatusCode::CREATED, place, Json(Placed { order, cents })).into_response())
}

/// Makes a charge at the provider. If this service dies halfway, the provider is asked once more
/// with the same key. A refusal of the provider is final, so it is stored like a charge.
async fn charge(
    State(shop): State<Shop>,
    Extension(held): Extension<LeasedKey>,
    Json(Amount { cents }): Json<Amount>,
) -> Result<Response, Broken> {
    match shop.provider.charge(&held.id.downstream().to_string(), cents).await {
        Ok(charge) => Ok((StatusCode::CREATED, charge).into_response()),
        Err(error) => {
            let declined = error.downcast::<Declined>()?;
            Ok((StatusCode::PAYMENT_REQUIRED, format!("{declined}\n")).into_response())
        }
    }
}

async fn count_orders(State(shop): State<Shop>) -> Result<String, Broken> {
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&shop.pool).await?;
    let messages: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox_message").fetch_one(&shop.pool).await?;
    Ok(format!("{orders} orders, {messages} messages\n"))
}

/// Returns the tenant of a request. A real service takes it from the request's extensions, where
/// authentication puts it.
fn tenant(request: &Parts) -> Option<Tenant> {
    let token = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Tenant::new(token).ok()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let pool = prepared(&[Line::Outbox, Line::Idempotency], TABLE).await?;
    let provider = Provider { address: optional("PROVIDER", "127.0.0.1:8090") };
    let lease = ClaimOptions::default().lease(Duration::from_secs(optional("LEASE_SECONDS", "60").parse()?));

    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?.with_outbox(Outbox::new());
    let orders = IdempotencyLayer::transactional(keys.clone(), "/orders", tenant)?.claim(lease);
    let charges = IdempotencyLayer::leased(keys, "/charges", tenant)?.claim(lease);
    let app = Router::new()
        .route("/orders", post(place_order).route_layer(orders))
        .route("/charges", post(charge).route_layer(charges))
        .route("/", get(count_orders))
        .with_state(Shop { pool, provider });

    let listener = TcpListener::bind(optional("LISTEN", "127.0.0.1:8080")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
