//! The names that producers and consumers use: `use outbox_toolkit::prelude::*;`.

pub use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions};
pub use message::{Event, Message, MessageId};
pub use outbox::{
    CommitError, EnqueueError, Enqueued, NewMessage, Outbox, OutboxTransaction, TransactionError,
};
#[cfg(feature = "postgres")]
pub use sqlx::Postgres;
#[cfg(feature = "sqlite")]
pub use sqlx::Sqlite;

#[cfg(feature = "relay")]
pub use crate::Relay;
pub use crate::{migrate, shutdown_signal};
