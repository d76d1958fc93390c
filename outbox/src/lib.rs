//! The transactional outbox: messages as rows of the caller's own transaction, and the log that the
//! relay reads.
//!
//! For producers:
//!
//! | module | contents |
//! |---|---|
//! | [`IntoMessage`] | everything that can be enqueued: a message or an event |
//! | [`new_message`] | [`NewMessage`]: a message that a producer builds |
//! | [`producer`] | [`Outbox`]: enqueues in the caller's transaction |
//! | [`transaction`] | [`OutboxTransaction`], [`Outbox::transaction`]: transactions that cannot lose a message |
//! | [`enqueue_error`] | [`EnqueueError`]; [`Remedy`]: what to do about it |
//! | [`nodes`] | [`NodeIds`](nodes::NodeIds): ids that name the node that made them |
//! | [`telemetry`] | all metrics |
//! | [`trace`] | [`Capture`](trace::Capture): the trace context at the time of enqueueing |
//! | [`wake`] | [`CommitNotify`]: wakes a relay in the same process after a commit |
//! | [`mod@pool`] | [`pool()`]: connection pools that are safe for transactions |
//!
//! For the relay and its operators:
//!
//! | module | contents |
//! |---|---|
//! | [`log`] | [`LogStore`](log::LogStore): the log, read behind a cursor |
//! | [`admin`] | [`LogAdmin`](admin::LogAdmin): status, dead entries, operators' decisions |
//! | [`entries`] | [`LogEntries`](entries::LogEntries): single entries, published ones included |
//! | [`retention`] | [`LogRetention`](retention::LogRetention): removes history that is no longer needed |
//! | [`reconcile`] | [`Rows`](reconcile::Rows): reads the outbox for a comparison with another system |
//! | [`read_only`] | [`ReadOnly`](read_only::ReadOnly): sessions that cannot write |
//!
//! For both:
//!
//! | module | contents |
//! |---|---|
//! | `postgres`, `sqlite` (features) | the dialects, each with the same files |
//! | [`dialect`] | [`Dialect`]: the database operations that producers need |
//! | [`address`] | [`Address`](address::Address): where to find a database |
//! | `crash_points` (feature `testing`) | places where a test kills the process |
//! | [`connect`] | turns a URL into connection options |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature opens more to tests"))]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: switch the feature `postgres` or `sqlite` on");

pub mod address;
pub mod admin;
pub mod connect;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod decided;
pub mod dialect;
mod drift;
pub mod enqueue_error;
pub mod entries;
mod failure;
/// Entry points for the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod into_message;
pub mod log;
pub mod new_message;
pub mod nodes;
pub mod pool;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod producer;
pub mod read_only;
pub mod reconcile;
mod remedy;
pub mod retention;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
pub mod telemetry;
pub mod trace;
pub mod transaction;
pub mod wake;

pub use dialect::Dialect;
pub use enqueue_error::EnqueueError;
pub use into_message::IntoMessage;
pub use new_message::{InvalidMessage, NewMessage};
#[doc(hidden)]
pub use pool::own_pool_options;
pub use pool::{PoolError, pool, pool_options};
pub use producer::{Enqueued, OnDuplicate, Outbox, OutboxBuilder};
pub use remedy::Remedy;
pub use transaction::{
    CommitError, CommitOutcome, OutboxTransaction, RetryPolicy, Rollback, TransactionError, UnknownCommit,
    Work,
};
pub use wake::CommitNotify;
