//! Sagas: operations over several services, as async functions.
//!
//! A step commits its effect, its result and its messages together with the saga's progress. After
//! a crash any worker continues where the saga was. When a saga stops, its steps are undone in
//! reverse order. Steps are identified by their names, so code may be reordered.
//!
//! ```no_run
//! # use std::time::Duration;
//! # #[derive(serde::Serialize, serde::Deserialize)] struct PlaceOrder { item: i64, cents: i64 }
//! # #[derive(serde::Serialize)] struct ShipOrder { hold: i64 }
//! # impl message::Event for ShipOrder { const TOPIC: &'static str = "ship"; const KIND: &'static str = "ship.order"; }
//! # async fn reserve(_: &mut sqlx::PgConnection, _: i64) -> Result<i64, sqlx::Error> { Ok(1) }
//! # async fn release(_: &mut sqlx::PgConnection, _: &i64) -> Result<(), sqlx::Error> { Ok(()) }
//! # #[derive(Clone)] struct Bank;
//! # impl Bank {
//! #     async fn charge(&self, _: &StepKey, _: i64) -> Result<String, std::io::Error> { Ok(String::new()) }
//! #     async fn refund(&self, _: &StepKey) -> Result<(), std::io::Error> { Ok(()) }
//! # }
//! use saga::{Retry, Run, Sagas, Started, StepKey, Stop};
//!
//! async fn checkout(saga: &mut Run, order: PlaceOrder, bank: &Bank) -> Result<String, Stop> {
//!     let hold: i64 = saga
//!         .step("reserve", async |tx| reserve(tx, order.item).await)
//!         .undo(async |tx, hold: &i64| release(tx, hold).await)
//!         .await?;
//!     let charge: String = saga
//!         .call("charge", async |key: &StepKey| bank.charge(key, order.cents).await)
//!         .undo(async |key, _: Option<&String>| bank.refund(key).await)
//!         .retry(Retry::times(5).within(Duration::from_mins(10)))
//!         .await?;
//!     let parcel: String =
//!         saga.request("ship", &ShipOrder { hold }).within(Duration::from_hours(48)).await?;
//!     saga.sleep("grace", Duration::from_hours(1)).await?;
//!     Ok(format!("{charge} {parcel}"))
//! }
//!
//! # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>, bank: Bank, order: PlaceOrder) -> Result<(), Box<dyn std::error::Error>> {
//! let sagas = Sagas::builder(pool.clone(), outbox.clone())
//!     .saga("checkout", 1, async move |saga: &mut Run, order: PlaceOrder| checkout(saga, order, &bank).await)
//!     .open()
//!     .await?;
//! let mut tx = outbox.begin(&pool).await?;
//! match sagas.start(&mut tx, "checkout", "42", &order).await? { // an error if another order has this id
//!     Started::Started => tx.commit().await?,
//!     Started::AlreadyThere(state) => println!("the order was placed before; it is {state}"),
//! }
//! sagas.run(std::future::pending()).await; // in any number of processes
//! # Ok(()) }
//! ```
//!
//! | what commits | with what |
//! |---|---|
//! | [`Sagas::start`] | the caller's transaction |
//! | [`Run::step`] | its rows, its messages and its result |
//! | [`Run::call`] | *calling*, before the call is made; its result, after the call |
//! | [`Run::request`] | the message, and that the saga waits |
//! | [`Replies`] | the reply, the wake-up and the inbox row |
//! | [`Run::sleep`] | its end, and that the saga waits |
//! | an undo | the record that it is undone; for a call, that record commits after the undo |
//!
//! Every commit of a worker is fenced by the name of its claim, and leases expire by the
//! database's clock: a worker that was suspended beyond its lease changes nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Sagas`], [`SagasBuilder`], [`InTransaction`], [`Started`] | the handle: registers, starts, runs |
//! | [`WorkerOptions`] | settings of a worker |
//! | [`Run`], [`Step`], [`Call`], [`Request`], [`Sleep`], [`Retry`] | what a saga's function does |
//! | [`Stop`], [`StepError`] | how a saga's function and its steps stop |
//! | [`Replies`], [`StepKey`], [`Replied`], [`KEY_HEADER`], [`TOKEN_HEADER`] | replies to requests |
//! | [`SagaId`], [`SagaRecord`], [`SagaOutline`], [`StepRecord`], [`State`], [`Condition`] | what is stored |
//! | [`SagaQuery`], [`Choice`], [`Seen`], [`Decision`], [`DecideError`], [`Overdue`] | lists and decisions for operators |
//! | [`telemetry`] | every metric |
//! | `crash_points` (feature `testing`) | places at which a test ends the process |
//! | `dialect` | PostgreSQL and SQLite |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature exposes more to tests"))]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: enable the feature `postgres` or `sqlite`");

mod admin;
mod base;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod dialect;
mod erasure;
mod error;
#[cfg(feature = "testing")]
mod hook;
mod in_transaction;
mod key;
mod lease;
mod operator;
mod options;
mod passes;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
mod registry;
mod replies;
mod reply_token;
mod retention;
mod retry;
mod rows;
mod run;
mod sagas;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod stop;
mod stranded;
mod tables;
pub mod telemetry;
mod worker;

pub use admin::{Choice, DecideError};
pub use dialect::{Dialect, Replied};
pub use error::{OpenError, ReplyError, StartError, StoreError};
#[cfg(feature = "testing")]
pub use hook::Hook;
pub use in_transaction::InTransaction;
pub use key::{ID_BYTES_MAX, InvalidKey, NAME_BYTES_MAX, SagaId, StepKey};
pub use operator::{Action, DecidedSaga, Decision, OVERDUE_COUNTED_MAX, Overdue, SagaOfId, SagaQuery};
pub use options::{SPAN_MAX, WorkerOptions};
pub use outbox::{AuditLine, Signature};
/// For the test that compares every statement with those that ran.
#[cfg(all(feature = "testing", feature = "postgres"))]
#[doc(hidden)]
pub use postgres::listed_statements;
#[doc(hidden)]
pub use record::Held;
pub use record::{
    Condition, SagaOutline, SagaRecord, Seen, State, StepKind, StepRecord, StepState, UndoState,
};
#[doc(hidden)]
pub use registry::SagaFunction;
pub use replies::{KEY_HEADER, Replies, TOKEN_HEADER};
pub use retry::Retry;
#[doc(hidden)]
pub use run::{
    Accepts, CallUndo, CallWork, Code, NoUndo, StepUndo, StepWork, TxUndo, Undo, UndoElsewhere, UndoInTx,
    UndoRequest,
};
pub use run::{Call, Request, Run, Sleep, Step};
pub use sagas::{Sagas, SagasBuilder, Started};
pub use stop::{StepError, Stop};
