//! The transactional outbox: messages are rows of the caller's own transaction, and a log for the
//! relay.
//!
//! For producers:
//!
//! | module | what it holds |
//! |---|---|
//! | [`IntoMessage`] | everything that can be enqueued: a message, or an event |
//! | [`new_message`] | [`NewMessage`]: what a producer wants to say |
//! | [`producer`] | [`Outbox`]: enqueues in the caller's transaction |
//! | [`transaction`] | [`OutboxTransaction`], [`Outbox::transaction`]: transactions that cannot lose a message |
//! | [`enqueue_error`] | [`EnqueueError`] |
//! | [`nodes`] | [`NodeIds`](nodes::NodeIds): ids that name the node which made them |
//! | [`telemetry`] | every metric |
//! | [`trace`] | [`Capture`](trace::Capture): the trace context at the time of enqueueing |
//! | [`wake`] | [`CommitNotify`]: the hint for a relay in the same process |
//! | [`mod@pool`] | [`pool()`]: connection pools that are safe for transactions |
//!
//! For the relay and its operators:
//!
//! | module | what it holds |
//! |---|---|
//! | [`log`] | [`LogStore`](log::LogStore): the log, read behind a cursor |
//! | [`admin`] | [`LogAdmin`](admin::LogAdmin): status, dead entries, decisions |
//! | [`entries`] | [`LogEntries`](entries::LogEntries): single entries, and those that were published |
//! | [`retention`] | [`LogRetention`](retention::LogRetention): history goes when nobody needs it any more |
//! | [`reconcile`] | [`Rows`](reconcile::Rows): the outbox compared with what happened elsewhere |
//! | [`read_only`] | [`ReadOnly`](read_only::ReadOnly): sessions that cannot write |
//!
//! For both:
//!
//! | module | what it holds |
//! |---|---|
//! | `postgres`, `sqlite` (features) | the dialects, with the same set of files |
//! | [`dialect`] | [`Dialect`]: what producers need of a database |
//! | [`address`] | [`Address`](address::Address): where a database is |
//! | `crash_points` (feature `testing`) | places at which a test ends the process |
//! | [`connect`] | from a URL to connection options |

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
pub mod dialect;
mod drift;
pub mod enqueue_error;
pub mod entries;
mod failure;
/// Open to the fuzz targets.
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
pub use transaction::{
    CommitError, CommitOutcome, OutboxTransaction, RetryPolicy, Rollback, TransactionError, UnknownCommit,
    Work,
};
pub use wake::CommitNotify;
