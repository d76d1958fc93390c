//! The transactional outbox: messages as rows of the caller's own transaction. The relay reads them
//! through a separate crate, `outbox_log`, so that a producer does not compile the reader.
//!
//! | module | contents |
//! |---|---|
//! | `producer` | [`Outbox`]: enqueues in the caller's transaction |
//! | `transaction` | [`OutboxTransaction`], [`Outbox::transaction`]: transactions that cannot lose a message |
//! | `enqueue_error` | [`EnqueueError`]; [`Remedy`]: what to do about it |
//! | [`nodes`] | [`NodeIds`](nodes::NodeIds): ids that name the node that made them |
//! | [`telemetry`] | all metrics |
//! | [`trace`] | [`Capture`](trace::Capture): the trace context at the time of enqueueing |
//! | `wake` | [`CommitNotify`]: wakes a relay in the same process after a commit |
//! | `pool` | [`pool()`], [`pool_with`]: connection pools that are safe for transactions |
//! | `pool_error` | [`PoolError`] |
//! | [`connect`] | turns a URL into connection options |
//! | `audit` | [`Signature`], [`AuditLine`]: who decided what, and why |
//! | `store_error` | [`StoreError`]: a failed operation of an inbox, of idempotency keys or of sagas |
//! | `begin` | begins a transaction for a caller that may go away |
//! | `dialect` | [`Dialect`]: the database operations that producers need |
//! | `postgres`, `sqlite` (features) | the dialects; files with the same name have the same task |
//! | `crash_points` (feature `testing`) | places where a test kills the process |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature exposes more to tests"))]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: enable the feature `postgres` or `sqlite`");

mod audit;
mod begin;
mod bounded;
mod columns;
pub mod connect;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod dialect;
mod drift;
mod enqueue_error;
mod failure;
pub mod nodes;
mod pool;
mod pool_error;
#[cfg(feature = "postgres")]
pub mod postgres;
mod producer;
mod remedy;
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub mod sqlite;
mod store;
mod store_error;
pub mod telemetry;
pub mod trace;
mod transaction;
mod wake;

#[doc(hidden)]
pub use audit::{AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN, Audit, read_action};
pub use audit::{AuditLine, Signature};
#[doc(hidden)]
pub use begin::begin_on;
#[doc(hidden)]
pub use bounded::{Bounded, CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN, no_answer};
#[doc(hidden)]
pub use columns::ENQUEUED;
pub use dialect::Dialect;
pub use enqueue_error::EnqueueError;
pub use message::token::ScheduledTooFar;
pub use message::{Difference, IdReused, IntoMessage, InvalidMessage, NewMessage};
#[doc(hidden)]
pub use pool::own_pool_options;
pub use pool::{pool, pool_options, pool_with};
pub use pool_error::PoolError;
pub use producer::{Enqueued, OnDuplicate, Outbox, OutboxBuilder};
pub use remedy::Remedy;
pub use store_error::StoreError;
#[doc(hidden)]
pub use transaction::{Accepts, FailedCall, Sealed};
pub use transaction::{
    CommitError, CommitOutcome, OutboxTransaction, ResolveError, RetryPolicy, Rollback, Running,
    TransactionError, UnknownCommit, Work,
};
pub use wake::CommitNotify;
