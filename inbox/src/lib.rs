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

mod activity;
mod attempts;
mod batch;
mod canonical_json;
mod chunks;
mod commit;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod day;
mod dead_letter;
mod dead_letters;
mod decision;
mod dialect;
mod discard;
mod error;
mod function;
mod guard;
mod handler;
mod held_keys;
mod held_turn;
mod inbox;
mod incomplete;
mod known;
mod late;
mod letter_in_hand;
mod letters;
mod many;
mod minutes;
mod name;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod reason;
mod received;
pub mod reconcile;
mod redrive;
mod redrive_request;
mod refusal;
mod retention;
mod rows;
mod runner;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod store_dead_letter;
mod store_error;
mod tables;
pub mod telemetry;
mod transaction;
mod window;
mod within;

pub use activity::Activity;
pub use attempts::{Attempt, Failures};
pub use batch::Candidate;
pub use chunks::{Gathered, Incomplete, Split};
pub use day::Day;
pub use dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery};
pub use decision::{Action, Decision, Requested, Signature};
pub use dialect::Dialect;
pub use error::{AdmitError, CommitError, ConfirmError, OpenError, RedriveError};
#[doc(hidden)]
pub use function::{BatchFunction, EventFunction, MessageFunction};
pub use function::{IntoResult, Tx};
pub use guard::{Admission, Duplicate, Guard};
pub use handler::{Handler, HandlerError, Next};
pub use held_keys::AfterDeadLetter;
pub use inbox::Inbox;
pub use known::{Known, KnownState};
pub use letters::{
    ClosedCount, FoundLetter, LETTERS_GROUPED_MAX, LETTERS_LOOKED_AT_MAX, LETTERS_SURVEYED_MAX,
    LetterDecision, LetterFilter, LetterGroup, LetterSlice, LetterSurvey,
};
pub use many::{DISCARDED_MAX, ManyDecided, REQUESTED_MAX, SeenLetter};
pub use message::Backoff;
pub use minutes::Counts;
pub use name::{ConsumerName, Tenant};
pub use options::{InboxOptions, PayloadComparison, SourceComparison};
pub use reason::{Reason, Resolution};
pub use received::Received;
pub use redrive::{RedriveOptions, Redriven};
pub use refusal::Refusal;
pub use retention::Maintained;
#[cfg(feature = "testing")]
pub use runner::CrashPoint;
pub use runner::{
    BuildError, Consumer, ConsumerBuilder, ConsumerStatus, JoinTraces, RunError, Shutdown, StopSignal,
    SubscriptionFactory, UnknownKinds,
};
#[cfg(feature = "testing")]
pub mod simulation {
    //! The runner's interface to the database, for simulations. It is not part of the stable
    //! interface.
    pub use crate::attempts::{Failed, Forget, Pause};
    pub use crate::held_keys::{HeldFirst, HeldKey};
    pub use crate::held_turn::{FailedTurn, Turn};
    pub use crate::name::MessageName;
    pub use crate::runner::{Admitted, AdmittedBatch, HeldMessages, Parts, Runner, RunnerOptions, Store};
}
pub use store_dead_letter::Cause;
pub use store_error::StoreError;
pub use transaction::InboxTransaction;
pub use window::Window;

#[doc(hidden)]
pub mod shared {
    //! Parts that idempotency keys, sagas and operators' tools have in common with the inbox. They
    //! are not part of the stable interface.
    #[cfg(feature = "testing")]
    pub use crate::activity::ACTIVITY_COUNTED_MAX;
    pub use crate::canonical_json::{DEPTH_MAX, canonical};
    pub use crate::commit::{UNSEALED, classify_commit, unsealed};
    pub use crate::day::{ahead, back};
    pub use crate::options::{AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN};
    pub use crate::within::{CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN};
}
