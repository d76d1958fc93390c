//! Idempotency keys: a repeated request runs once.
//!
//! A caller identifies its request by a key. The request that claims the key runs and stores its
//! outcome; every later request with the same key gets that outcome. There are two ways to hold a
//! key:
//!
//! * **In a transaction** ([`IdempotencyKeys::begin`]): the effect is in the same database. Key,
//!   effect and outcome commit together, or nothing does. A crash leaves nothing behind.
//! * **On lease** ([`IdempotencyKeys::claim`]): the effect is elsewhere. The holder claims the key,
//!   requests the effect with the key passed on, and stores the outcome. If a holder dies, another
//!   one takes over when its lease has expired. The service that has the effect must honour the
//!   key, because it may be called twice.
//!
//! | item | contents |
//! |---|---|
//! | [`IdempotencyKeys`], [`KeyOptions`], [`ClaimOptions`] | the handle to the table, and the policies |
//! | [`KeyId`], [`Operation`], [`IdempotencyKey`] | the identity of a request |
//! | [`Claimed`], [`Replay`] | the outcome of a claim |
//! | [`Claim`] | a key held on lease |
//! | [`KeyTransaction`] | a key held by a transaction |
//! | [`ClaimError`], [`CompleteError`] | errors |
//! | [`Tenant`], [`CommitError`], [`StoreError`], [`Signature`] | types of other crates in this interface |
//! | [`StuckKey`], [`Decision`] | keys that wait for an operator, and decisions about them |
//! | [`KeysOfName`], [`NamedSlice`] | keys whose answers are erased |
//! | [`Maintained`] | counts of background maintenance |
//! | `http` (feature `http`) | idempotency keys at the HTTP edge: a tower layer |
//! | [`telemetry`] | every metric |
//! | `crash_points` (feature `testing`) | places where a test ends the process |
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use idempotency::{
//!     ClaimOptions, Claimed, Ending, IdempotencyKey, IdempotencyKeys, KeyId, KeyOptions, Operation, Tenant,
//! };
//! use message::Fingerprint;
//!
//! let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await?;
//! let id = KeyId::new(Tenant::new("tenant-7")?, Operation::new("place-order")?, IdempotencyKey::new("8e03978e")?)?;
//! let request = Fingerprint::of_parts("place-order", "application/json", br#"{"cents":1250}"#);
//! match keys.begin(&id, request, &ClaimOptions::default()).await? {
//!     Claimed::Acquired(mut tx) => {
//!         sqlx::query("INSERT INTO orders (cents) VALUES (1250)").execute(&mut **tx).await?;
//!         tx.commit(Ending::Succeeded, b"order 1").await?;
//!     }
//!     Claimed::Replay(replay) => println!("{:?}", replay.outcome),
//!     other => println!("not now: {other:?}"),
//! }
//! # Ok(()) }
//! ```

#![cfg_attr(
    not(feature = "testing"),
    allow(
        unreachable_pub,
        reason = "the feature makes more items public \
                                                                       for tests"
    )
)]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: enable the feature `postgres` or `sqlite`");

mod admin;
mod again;
mod claim;
mod claimed;
mod claiming;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod decide;
mod erasure;
mod error;
mod handle;
mod hold;
#[cfg(feature = "http")]
pub mod http;
mod id;
mod maintenance;
mod open;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod store;
mod tables;
pub mod telemetry;
mod token;
mod transaction;
mod undelivered;

pub use admin::DecideError;
pub use claim::Claim;
pub use claimed::{Claimed, Replay};
pub use error::{ClaimError, CompleteError};
pub use handle::IdempotencyKeys;
pub use id::{IdempotencyKey, KeyId, Operation};
pub use maintenance::Maintained;
pub use message::Tenant;
pub use options::{ClaimOptions, KeyOptions, OnExpired};
pub use outbox::{AuditLine, CommitError, Signature, StoreError, UnknownCommit};
/// For the test that compares every statement with those that ran.
#[cfg(all(feature = "testing", feature = "postgres"))]
#[doc(hidden)]
pub use postgres::listed_statements;
pub use record::{Action, Decision, Ending, KEYS_LOOKED_AT_MAX, KeysOfName, NamedSlice, StuckKey};
pub use store::KeyStore;
pub use transaction::KeyTransaction;
