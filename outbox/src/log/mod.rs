//! The log as the relay sees it: an append-only sequence of entries, read in order behind a cursor.
//!
//! | module | contents |
//! |---|---|
//! | [`entry`] | [`Entry`]: one row of the log |
//! | [`cursor`] | [`Mark`], [`Difference`], [`Cursor`]: positions in the log |
//! | [`exception`] | [`Exception`], [`ExceptionChange`]: entries that did not leave on the first attempt |
//! | [`queue`] | [`QueueName`], [`HeldPage`], [`DuePage`]: how exceptions are read back |
//! | [`lease`] | [`Lease`], [`Acquired`], [`Fenced`]: permission to move the cursor |
//! | [`store`] | [`LogStore`], [`LogReader`], [`CheckpointStore`]: the database operations that the relay needs |
//! | [`trouble`] | [`BrokerTrouble`]: the error that keeps a relay from its broker |
//! | [`error`] | [`LogError`] |
//! | [`options`] | [`LogOptions`]: options of connections |
//! | [`mod@open`] | [`open()`]: opens a log from a URL |

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
