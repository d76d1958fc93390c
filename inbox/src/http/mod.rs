//! Idempotency keys at the HTTP edge: a [`tower`](https://docs.rs/tower) layer for axum and anything tower.
//!
//! A request with the header `Idempotency-Key` runs once; whoever sends it again gets the stored
//! response, marked with `Idempotency-Replayed: true`. The rules are those of the IETF draft *The
//! Idempotency-Key HTTP Header Field*, revision 7.
//!
//! | module | what it holds |
//! |---|---|
//! | [`IdempotencyLayer`] | the layer, one for each route, and its settings |
//! | [`Idempotent`] | the service that it makes |
//! | [`HeldTransaction`], [`LeasedKey`] | what the handler gets |
//! | [`Effect`] | what its answer says about the effect |
//! | [`header`] | the header, read strictly or leniently |
//! | [`fingerprint`](mod@fingerprint) | what tells two requests under one key apart |
//! | [`stored`] | what of a response is stored, and how |
//! | [`problem`] | what is answered instead of the handler |
//!
//! The three lines of a service whose effects are in the database of the keys:
//!
//! ```no_run
//! # use axum::{Extension, Router, http::StatusCode, routing::post};
//! # use inbox::http::{HeldTransaction, IdempotencyLayer};
//! # use inbox::keys::{IdempotencyKeys, KeyOptions};
//! # use inbox::Tenant;
//! # use sqlx::Postgres;
//! # async fn place_order(_: Extension<HeldTransaction<Postgres>>) -> StatusCode { StatusCode::CREATED }
//! # async fn example(pool: sqlx::PgPool) -> Result<Router, Box<dyn std::error::Error>> {
//! let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await?;
//! let once = IdempotencyLayer::transactional(keys, "/orders", |_request| Tenant::new("tenant-7").ok())?;
//! let app: Router = Router::new().route("/orders", post(place_order)).route_layer(once);
//! # Ok(app) }
//! ```

mod answer;
mod effect;
pub mod fingerprint;
pub mod header;
mod held;
mod layer;
pub mod problem;
mod run;
mod service;
pub mod stored;

pub use effect::Effect;
pub use held::{HeldGuard, HeldTransaction, LeasedKey, TransactionGone};
pub use layer::{BODY_BYTES_MAX_DEFAULT, BODY_TIMEOUT_DEFAULT, IdempotencyLayer, InvalidRoute};
pub use service::Idempotent;
