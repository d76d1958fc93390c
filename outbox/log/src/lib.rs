//! The log of a transactional outbox as the relay and its operators see it: an append-only sequence
//! of entries, read in order behind a cursor.
//!
//! For the relay:
//!
//! | module | contents |
//! |---|---|
//! | `entry` | [`Entry`]: one row of the log |
//! | `cursor` | [`Mark`], [`Difference`], [`Cursor`]: positions in the log |
//! | `exception` | [`Exception`], [`ExceptionChange`]: entries that were not published on the first attempt |
//! | `queue` | [`QueueName`], [`HeldPage`], [`DuePage`]: how exceptions are read back |
//! | `lease` | [`Lease`], [`Acquired`], [`OtherHolder`], [`Fenced`]: permission to move the cursor |
//! | `store` | [`LogStore`], [`LogReader`], [`CheckpointStore`]: the database operations that the relay needs |
//! | `trouble` | [`BrokerTrouble`]: the error that keeps a relay from its broker |
//! | `open` | [`open()`]: opens a log at an address |
//!
//! For operators:
//!
//! | module | contents |
//! |---|---|
//! | [`admin`] | [`LogAdmin`](admin::LogAdmin): status, dead entries, operators' decisions |
//! | [`entries`] | [`LogEntries`](entries::LogEntries): single entries, published ones included |
//! | `pause` | [`Pause`], [`PauseScope`], [`PAUSES_MAX`]: what operators have paused |
//! | [`retention`] | [`LogRetention`](retention::LogRetention): removes history that is no longer needed |
//! | [`reconcile`] | [`Rows`](reconcile::Rows): reads the outbox for a comparison with another system |
//! | [`read_only`] | [`ReadOnly`](read_only::ReadOnly): sessions that cannot write |
//!
//! For both:
//!
//! | module | contents |
//! |---|---|
//! | `address` | [`Address`]: where to find a database |
//! | `options` | [`LogOptions`]: options of connections |
//! | `error` | [`LogError`] |
//! | `operators`, `tables`, `rows`, `dialect` | queries and decisions that are the same on every database |
//! | `postgres`, `sqlite` (features) | the dialects; files with the same name have the same task |
//! | `testing` (feature) | a log that answers as a test says |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature exposes more to tests"))]

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a database: enable the feature `postgres` or `sqlite`");

mod address;
pub mod admin;
mod changes;
mod cursor;
mod decided;
mod dialect;
pub mod entries;
mod entry;
mod error;
mod exception;
mod failure;
/// Entry points for the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lease;
mod open;
mod operators;
mod options;
mod pause;
#[cfg(feature = "postgres")]
pub mod postgres;
mod queue;
pub mod read_only;
pub mod reconcile;
pub mod retention;
mod row;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod stored;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod trouble;
#[doc(hidden)]
pub mod watch;

pub use address::Address;
pub use cursor::{BrokerTransaction, Cursor, Difference, Mark, Progress};
pub use entry::{Entry, EntryId, InvalidEntry, Page, PageLimit, RowLimit};
pub use error::LogError;
pub use exception::{
    Exception, ExceptionChange, ExceptionState, ExceptionSummary, Parked, StuckPage, UnknownState,
};
#[doc(hidden)]
pub use failure::in_time;
pub use lease::{Acquired, Fenced, Lease, OtherHolder, RelayName};
pub use open::open;
pub use options::LogOptions;
pub use pause::{PAUSES_MAX, Pause, PauseScope};
pub use queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueue, HeldQueues, QueueName};
pub use store::{CheckpointStore, LogReader, LogStore};
pub use trouble::BrokerTrouble;
