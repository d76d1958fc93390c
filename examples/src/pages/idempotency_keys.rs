//! The code of `docs/idempotency-keys.md`.

use std::time::Duration;

use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use outbox_toolkit::http::Effect;
use outbox_toolkit::keys::OnExpired;
use serde::Deserialize;

use outbox_toolkit::keys::{ClaimOptions, Claimed, Ending, KeyId};
use outbox_toolkit::message::Fingerprint;

use axum::{Extension, Json, Router, http::StatusCode, routing::post};
use outbox_toolkit::http::{HeldTransaction, IdempotencyLayer};
use outbox_toolkit::keys::{IdempotencyKeys, KeyOptions};
use outbox_toolkit::prelude::*;

use sqlx::PgPool;

use crate::broken::Broken as Refused;
use crate::order::OrderPlaced;
use crate::setting::Failure;
use Problem::{NoAnswer, NotConnected};

#[derive(Deserialize)]
struct NewOrder {
    cents: i64,
}

fn tenant(parts: &Parts) -> Option<Tenant> {
    Tenant::new(parts.headers.get("tenant")?.to_str().ok()?).ok()
}

async fn service(pool: PgPool) -> Result<Router, Failure> {
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?.with_outbox(Outbox::new());
    let once = IdempotencyLayer::transactional(keys, "/orders", tenant)?;                 // tenant: whose request it is
    let app = Router::new().route("/orders", post(place_order)).route_layer(once);
    Ok(app)
}

async fn place_order(
    Extension(held): Extension<HeldTransaction<Postgres>>,
    Extension(tenant): Extension<Tenant>,                                             // what `tenant` returned
    Json(NewOrder { cents }): Json<NewOrder>,
) -> Result<(StatusCode, Json<i64>), Refused> {
    let mut tx = held.lock().await?;
    let insert = "INSERT INTO orders (tenant, cents) VALUES ($1, $2) RETURNING id";
    let order = sqlx::query_scalar(insert).bind(tenant.as_str()).bind(cents).fetch_one(&mut **tx).await?;
    tx.enqueue(&OrderPlaced { order, cents }).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

fn policies(keys: IdempotencyKeys<Postgres>) -> Result<(), Failure> {
    let once = IdempotencyLayer::leased(keys, "/charges", tenant)?
        .claim(ClaimOptions::default().on_expired(OnExpired::Refuse).retention(Duration::from_hours(12)))
        .optional();                                                    // requests without a key run each time
    Ok(())
}

enum Problem {
    NotConnected,
    NoAnswer,
}

struct Provider;

impl Provider {
    async fn charge(&self, cents: i64) -> Result<String, Problem> {
        match cents {
            0 => Err(NotConnected),
            1 => Err(NoAnswer),
            _ => Ok(cents.to_string()),
        }
    }
}

async fn charge(provider: Provider, cents: i64) -> Response {
    match provider.charge(cents).await {
        Ok(charge) => (StatusCode::CREATED, charge).into_response(),                                     // stored
        Err(NotConnected) => (Extension(Effect::None), StatusCode::SERVICE_UNAVAILABLE).into_response(), // the next retry runs it
        Err(NoAnswer) => (Extension(Effect::Unknown), StatusCode::BAD_GATEWAY).into_response(),          // an operator decides
    }
}

struct OtherProvider;

impl OtherProvider {
    async fn charge(&self, key: sqlx::types::Uuid, cents: i64) -> Result<Vec<u8>, Failure> {
        Ok(format!("{key} {cents}").into_bytes())
    }
}

async fn on_a_lease(
    keys: IdempotencyKeys<Postgres>,
    body: Vec<u8>,
    provider: OtherProvider,
    cents: i64,
) -> Result<(), Failure> {
    let id = KeyId::of_texts("tenant-1", "charge", "8e03978e")?;                   // tenant, operation, key
    let request = Fingerprint::of_parts("charge", "application/json", &body);      // the same for each retry
    match keys.claim(&id, request, &ClaimOptions::default()).await? {
        Claimed::Acquired(claim) => {
            let answer = provider.charge(claim.id().downstream(), cents).await?;   // the key goes with the call
            claim.complete(Ending::Succeeded, &answer).await?;
        }
        Claimed::Replay(replay) => println!("it was {:?} at {}", replay.ending, replay.processed_at),
        other => println!("in flight, stuck, discarded, or another request under this key: {other:?}"),
    }
    Ok(())
}

async fn in_a_transaction(
    keys: IdempotencyKeys<Postgres>,
    id: KeyId,
    request: Fingerprint,
    cents: i64,
) -> Result<(), Failure> {
    match keys.begin(&id, request, &ClaimOptions::default()).await? {
        Claimed::Acquired(mut tx) => {
            let insert = "INSERT INTO orders (cents) VALUES ($1) RETURNING id";
            let order: i64 = sqlx::query_scalar(insert).bind(cents).fetch_one(&mut **tx).await?;
            tx.enqueue(&OrderPlaced { order, cents }).await?;
            tx.commit(Ending::Succeeded, &order.to_be_bytes()).await?;             // the bytes that a retry gets
        }
        Claimed::Replay(replay) => println!("it is order {:?}", replay.outcome),
        other => println!("not now: {other:?}"),
    }
    Ok(())
}

fn waiting(keys: IdempotencyKeys<Postgres>) -> Result<(), Failure> {
    let once = IdempotencyLayer::leased(keys, "/charges", tenant)?.wait_max(Duration::from_secs(10));
    Ok(())
}
