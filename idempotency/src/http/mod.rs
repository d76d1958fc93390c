//! Idempotency keys at the HTTP edge: a [`tower`](https://docs.rs/tower) layer for axum and other
//! tower services.
//!
//! A request with the header `Idempotency-Key` runs once. A repeated request gets the stored
//! response, marked with `Idempotency-Replayed: true`. The rules are those of the IETF draft *The
//! Idempotency-Key HTTP Header Field*, revision 7.
//!
//! | item | contents |
//! |---|---|
//! | [`IdempotencyLayer`] | the layer, one for each route, and its settings |
//! | [`Idempotent`] | the service that it makes |
//! | [`HeldTransaction`], [`LeasedKey`], [`Tenant`](crate::Tenant) | extensions for the handler |
//! | [`Effect`] | the effect that a response reports |
//! | [`is_stored_by_default`] | which statuses are stored |
//! | `header` | the header, read strictly or leniently |
//! | `fingerprint` | distinguishes requests with one key |
//! | `stored` | which part of a response is stored, and how |
//! | `problem` | answers in place of the handler's |
//!
//! A service whose effects are in the database of the keys needs three lines:
//!
//! ```no_run
//! # use axum::{Extension, Router, http::StatusCode, routing::post};
//! # use idempotency::http::{HeldTransaction, IdempotencyLayer};
//! # use idempotency::{IdempotencyKeys, KeyOptions, Tenant};
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
mod fingerprint;
mod header;
mod held;
mod layer;
mod problem;
mod renewal;
mod run;
mod service;
mod stored;
pub(crate) mod waiting;

pub use effect::Effect;
pub use held::{HeldGuard, HeldTransaction, LeasedKey, TransactionGone};
pub use layer::{IdempotencyLayer, InvalidRoute};
pub use service::Idempotent;
pub use stored::is_stored_by_default;

#[doc(hidden)]
pub mod wire {
    //! The forms of requests and stored responses, for fuzz targets. It is not part of the stable
    //! interface.
    pub use super::fingerprint::fingerprint;
    pub use super::header::{IDEMPOTENCY_KEY, InvalidKey, KEY_BYTES_MAX, parse, read};
    pub use super::stored::StoredResponse;
}
