//! Idempotency keys: a request that is sent again runs once.
//!
//! A caller names its request by a key. Whoever claims the key runs the request and stores its
//! outcome; everybody who comes later with the same key gets that outcome. There are two ways to
//! hold a key:
//!
//! * **In a transaction** ([`IdempotencyKeys::begin`]): the effect is in the same database. Key,
//!   effect and outcome commit together, or nothing does. A crash leaves nothing behind.
//! * **On lease** ([`IdempotencyKeys::claim`]): the effect is elsewhere. The key is claimed, the
//!   effect is asked for with the key passed on, the outcome is stored. A holder that dies is
//!   succeeded by another one when its lease has expired; the service that is asked must honour the
//!   key, because it may be asked twice.
//!
//! | module | what it holds |
//! |---|---|
//! | [`IdempotencyKeys`], [`KeyOptions`], [`ClaimOptions`] | the handle to the table, and the policies |
//! | [`KeyId`], [`Operation`], [`IdempotencyKey`] | what names a request |
//! | [`Claimed`], [`Replay`] | what a claim comes to |
//! | [`Claim`] | a key held on lease |
//! | [`KeyTransaction`] | a key held by a transaction |
//! | [`ClaimError`], [`CompleteError`] | what can go wrong |
//! | [`StuckKey`], [`Decided`] | what an operator has to decide about, and has decided |
//! | [`Maintained`] | what is done in the background |
//! | `crash_points` (feature `testing`) | places at which a test ends the process |
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use inbox::Tenant;
//! use inbox::keys::{ClaimOptions, Claimed, Ending, IdempotencyKey, IdempotencyKeys, KeyId, KeyOptions, Operation};
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

mod admin;
mod claim;
mod claimed;
#[cfg(not(feature = "testing"))]
pub(crate) mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
pub(crate) mod decide;
mod error;
mod handle;
mod hold;
mod id;
mod maintenance;
mod options;
pub(crate) mod record;
pub(crate) mod store;
pub(crate) mod telemetry;
mod token;
mod transaction;

pub use admin::{DecideError, Decided, Decision, StuckKey};
pub use claim::Claim;
pub use claimed::{Claimed, Replay};
pub use error::{ClaimError, CompleteError};
pub use handle::IdempotencyKeys;
pub use id::{IdempotencyKey, KeyId, Operation};
pub use maintenance::Maintained;
pub use options::{
    ClaimOptions, KEY_CALL_TIMEOUT_DEFAULT, KEY_RETENTION_DEFAULT, KEY_RETENTION_MAX, KEY_RETENTION_MIN,
    KeyOptions, LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, MAINTAIN_EVERY_DEFAULT, OnExpired, OptionOutOfBounds,
};
pub use record::Ending;
pub use store::KeyStore;
pub use transaction::KeyTransaction;
