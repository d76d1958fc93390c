//! The names that producers and consumers use: `use outbox_toolkit::prelude::*;`.

pub use inbox::{
    AfterDeadLetter, Consumer, Handler, HandlerError, Inbox, InboxOptions, Received, Tenant, Tx, UnknownKinds,
};
pub use message::{Event, Message, MessageId};
pub use outbox::{
    CommitError, EnqueueError, Enqueued, NewMessage, Outbox, OutboxTransaction, Rollback, TransactionError,
};
#[cfg(feature = "saga")]
pub use saga::{Retry, Run, Sagas, Started, StepError, Stop};
#[cfg(feature = "postgres")]
pub use sqlx::Postgres;
#[cfg(feature = "sqlite")]
pub use sqlx::Sqlite;

#[cfg(feature = "relay")]
pub use crate::Relay;
pub use crate::{migrate, shutdown_signal};
