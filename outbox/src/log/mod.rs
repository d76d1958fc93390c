//! The log as the relay sees it: entries that only ever get appended, read in order behind a
//! cursor.
//!
//! | module | what it holds |
//! |---|---|
//! | [`entry`] | [`Entry`]: one row of the log |
//! | [`cursor`] | [`Mark`], [`Difference`], [`Cursor`]: places in the log |
//! | [`exception`] | [`Exception`], [`ExceptionChange`]: entries that did not simply leave |
//! | [`queue`] | [`QueueName`], [`HeldPage`], [`DuePage`]: how exceptions are read back |
//! | [`lease`] | [`Lease`], [`Acquired`], [`Fenced`]: who may move the cursor |
//! | [`store`] | [`LogStore`], [`LogReader`], [`CheckpointStore`]: what a database offers the relay |
//! | [`trouble`] | [`BrokerTrouble`]: what keeps a relay from its broker |
//! | [`error`] | [`LogError`] |
//! | [`options`] | [`LogOptions`]: how connections are made |
//! | [`mod@open`] | [`open()`]: from a URL to a log |

pub(crate) mod changes;
pub mod cursor;
pub mod entry;
pub mod error;
pub mod exception;
pub(crate) mod failure;
pub mod lease;
pub mod open;
pub mod options;
pub mod pause;
pub mod queue;
pub(crate) mod row;
pub mod store;
pub(crate) mod stored;
pub(crate) mod text;
pub mod trouble;
pub(crate) mod watch;

pub use cursor::{BrokerTransaction, Cursor, Difference, Mark, Progress};
pub use entry::{Entry, EntryId, InvalidEntry, Page, PageLimit, RowLimit};
pub use error::LogError;
pub use exception::{Exception, ExceptionChange, ExceptionState, ExceptionSummary, Parked, UnknownState};
pub use lease::{Acquired, Fenced, Lease, RelayName};
pub use open::open;
pub use options::LogOptions;
pub use pause::{Pause, PauseScope};
pub use queue::{DuePage, DuePosition, HeldAsk, HeldPage, HeldQueue, HeldQueues, QueueName};
pub use store::{CheckpointStore, LogReader, LogStore};
pub use trouble::BrokerTrouble;
