//! The transactional inbox: every message takes effect once.
//!
//! The id of a message and its effect are committed in one transaction. A duplicate finds the id
//! and does nothing. A message that is older than the inbox remembers, or that reuses an id with a
//! different payload, is refused with an error. Settling a delivery requires the proof of a commit.
//!
//! | item | contents |
//! |---|---|
//! | [`Inbox`], [`InboxOptions`] | the handle to the tables |
//! | [`ConsumerName`], [`Tenant`] | the consumer, and the tenant of a message |
//! | [`Admission`], [`Guard`], [`Duplicate`], [`Candidate`] | admitting one message, or many |
//! | [`InboxTransaction`] | a transaction that returns the proof of its commit |
//! | [`Gathered`], [`Incomplete`] | messages in chunks |
//! | [`Refusal`], [`Window`] | refused messages, and which ids are accepted |
//! | [`DeadLetter`], [`Cause`], [`DeadLetterQuery`], [`RedriveOptions`] | messages that need an operator |
//! | [`LetterFilter`], [`LetterSurvey`], [`ManyDecided`], [`LetterDecision`] | many dead letters at once |
//! | [`AfterDeadLetter`] | whether a dead letter holds its key |
//! | [`Decision`], [`Signature`] | what was decided about a dead letter, by whom and why |
//! | [`Consumer`], [`Tx`], [`Received`], [`Handler`], [`UnknownKinds`], [`Shutdown`] | the ready consumer loop |
//! | [`Backoff`], [`Attempt`], [`Failures`] | when to try again |
//! | [`Maintained`], [`Day`] | days that are created and forgotten |
//! | [`reconcile`] | comparing an inbox with other records |
//! | [`telemetry`] | every metric |
//! | `crash_points` (feature `testing`) | places where a test ends the process |
//! | [`Dialect`] | PostgreSQL and SQLite |
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool, message: message::Message) -> Result<(), Box<dyn std::error::Error>> {
//! use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
//!
//! let inbox = Inbox::open(pool, InboxOptions::default()).await?;
//! let billing = ConsumerName::new("billing")?;
//! let mut tx = inbox.begin().await?;
//! if let Admission::Fresh(_) = tx.admit(&billing, &Tenant::none(), &message).await? {
//!     sqlx::query("UPDATE account SET balance = balance - 12 WHERE id = 7").execute(&mut **tx).await?;
//! }
//! let proofs = tx.commit().await?; // what settling the delivery demands
//! # drop(proofs); Ok(()) }
//! ```

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature exposes more to tests"))]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: enable the feature `postgres` or `sqlite`");

// Values: what all other modules name.
mod comparison;
mod day;
mod error;
mod error_text;
mod ids;
mod known;
mod options;
mod refusal;
mod store_error;
mod window;

// The database: statements, the tables that run them, and rows as records.
mod dialect;
#[cfg(feature = "postgres")]
mod postgres;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod tables;

// The handle, and what keeps its tables in order.
mod erasure;
mod inbox;
mod retention;
mod within;

// Messages take effect once.
mod batch;
mod chunks;
mod guard;
mod transaction;

// Messages that fail.
mod attempts;
mod dead_letters;

// Questions about messages and consumers.
mod activity;
mod lookup;
pub mod reconcile;

// The ready consumer.
mod handler;
mod runner;

// Reports, and places for tests.
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
pub mod telemetry;

pub use activity::{ACTIVITY_COUNTED_MAX, Activity, Counts};
pub use attempts::{Attempt, Failures};
pub use batch::Candidate;
pub use chunks::{Gathered, Incomplete, Split};
pub use comparison::{Duplicate, PayloadComparison, SourceComparison};
pub use day::Day;
pub use dead_letters::{
    Action, AfterDeadLetter, Cause, ClosedCount, DISCARDED_MAX, DeadLetter, DeadLetterQuery, DecidedLetter,
    Decision, EVIDENCE_BYTES_MAX, FoundLetter, KeyedLetter, LETTER_ERRORS_LOOKED_AT, LETTERS_GROUPED_MAX,
    LETTERS_LOOKED_AT_MAX, LETTERS_SURVEYED_MAX, LetterDecision, LetterFilter, LetterGroup, LetterSlice,
    LetterSurvey, LettersOfKey, ManyDecided, REQUESTED_MAX, Reason, RedriveOptions, Redriven, Requested,
    Resolution, SeenLetter, Signature,
};
pub use dialect::Dialect;
pub use error::{AdmitError, CommitError, ConfirmError, OpenError, RedriveError, UnknownCommit};
pub use guard::{Admission, Guard};
#[doc(hidden)]
pub use handler::{BatchFunction, EventFunction, MessageFunction};
pub use handler::{Handler, HandlerError, IntoResult, Next, Received, Tx};
pub use ids::{ConsumerName, DeadLetterId, Tenant};
pub use inbox::Inbox;
pub use known::{Known, KnownState};
pub use message::Backoff;
pub use options::InboxOptions;
pub use outbox::AuditLine;
/// For the test that compares every statement with those that ran.
#[cfg(all(feature = "testing", feature = "postgres"))]
#[doc(hidden)]
pub use postgres::listed_statements;
pub use refusal::Refusal;
pub use retention::Maintained;
#[cfg(feature = "testing")]
pub use runner::CrashPoint;
pub use runner::{
    BuildError, Consumer, ConsumerBuilder, ConsumerStatus, JoinTraces, RunError, Shutdown, StopSignal,
    SubscriptionFactory, UnknownKinds, Wait, WaitReason,
};
#[cfg(feature = "testing")]
pub mod simulation {
    //! The runner's interface to the database, for simulations. It is not part of the stable
    //! interface.
    pub use crate::attempts::{Failed, Forget, Pause};
    pub use crate::dead_letters::{FailedTurn, HeldFirst, HeldKey, Turn};
    pub use crate::ids::MessageName;
    pub use crate::runner::{Admitted, AdmittedBatch, HeldMessages, Parts, Runner, RunnerOptions, Store};
}
pub use store_error::StoreError;
pub use transaction::InboxTransaction;
pub use window::Window;
