//! For tests of services built on the toolkit: outbox, relay, broker and inbox in one process,
//! faults on demand, and a checker of the promises.
//!
//! A [`World`] holds a SQLite database in a temporary folder, a relay that empties its outbox, an
//! in-memory broker, and the consumers under test. Nothing has to be installed, and worlds are
//! isolated from each other, so tests run side by side. A world for a service on PostgreSQL has a
//! schema of a server instead: `World::postgres(url)`, with the feature `postgres`.
//!
//! ```
//! use async_trait::async_trait;
//! use inbox::{Handler, HandlerError, Tx};
//! use message::Message;
//! use outbox::NewMessage;
//! use sqlx::Sqlite;
//! use testkit::World;
//!
//! struct Billing;
//!
//! #[async_trait]
//! impl Handler<Sqlite> for Billing {
//!     async fn handle(&self, tx: &mut Tx<Sqlite>, _: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
//!         sqlx::query("UPDATE account SET cents = cents - 1250").execute(&mut **tx).await?;
//!         Ok(None)
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), testkit::Failure> {
//! let world = World::new().await?;
//! world.execute("CREATE TABLE account (cents INTEGER NOT NULL)").await?;
//! world.execute("INSERT INTO account VALUES (5000)").await?;
//! // Three consumers, each of which gets every message, at the same time.
//! world.consumer("billing", "orders", Billing).copies(3).start()?;
//! world.enqueue([NewMessage::new("orders").key("order-7").payload("{}")]).await?;
//! world.quiet().await?;
//! assert_eq!(world.number("SELECT cents FROM account").await?, 3750);
//! world.assert_promises_kept().await;
//! # Ok(()) }
//! ```
//!
//! | what may go wrong | how |
//! |---|---|
//! | a message comes several times | [`Faults::duplicate_next`], [`Broker::replay`] |
//! | … to several consumers at once | [`Consuming::copies`], [`World::feed_of_its_own`] |
//! | an acknowledgement gets lost | [`Faults::lose_settlements`] |
//! | messages come in a different order | [`Faults::shuffle_deliveries`] |
//! | a confirmation gets lost, or the message with it | [`Faults::lose_next`], [`Faults::hold_confirms`] |
//! | the broker refuses, or is unavailable | [`Faults::refuse_id`], [`Faults::unreachable`] |
//! | a consumer dies between effect and commit, or between commit and acknowledgement | [`World::crash_at`] |
//! | a consumer or the relay dies at any point of its work | [`World::crash_consumers`], [`World::crash_relay`] |
//! | time passes | [`World::advance`], [`made_ago`] |
//!
//! | module | contents |
//! |---|---|
//! | `world` | [`World`]: database, relay, broker |
//! | `database`, `home` | [`Database`]: the databases that a world can have, and the place of its tables |
//! | `postgres` | worlds on PostgreSQL (feature `postgres`) |
//! | `consuming` | [`Consuming`], [`Feed`]: consumers that are restarted when they crash |
//! | `recorded` | a handler, as the consumer calls it, whose effects are recorded in its own transaction |
//! | `quiet` | waiting until nothing is in flight |
//! | `advance` | the passing of time |
//! | `observed` | the contents of the stores, as a history |
//! | [`sagas`] | a saga with a crash at every point |
//! | `verdict` | the verdict on the promises |
//! | `clock` | ids with a time in the past |
//! | `failure` | [`Failure`] |
//! | [`crash_points`] | places at which a whole process is ended, for tests of programs |

mod advance;
mod clock;
mod consuming;
pub mod crash_points;
mod database;
mod failure;
mod home;
mod observed;
#[cfg(feature = "postgres")]
pub mod postgres;
mod quiet;
mod recorded;
pub mod sagas;
mod verdict;
mod world;

pub use brokers::memory::{Broker, Faults, Loss};
pub use clock::made_ago;
pub use consuming::{Consuming, Feed};
pub use database::Database;
pub use failure::Failure;
pub use inbox::CrashPoint;
pub use world::{World, WorldBuilder};
