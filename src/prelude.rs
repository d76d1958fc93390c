//! The names that producers and consumers use: `use outbox_toolkit::prelude::*;`.
//!
//! Names that could mean anything stay in their crates, such as `saga::{Run, Stop, Retry}`.

pub use inbox::{
    AfterDeadLetter, Consumer, Handler, HandlerError, Inbox, InboxOptions, Received, Tenant, Tx, UnknownKinds,
};
pub use message::{Event, EventType, Malformed, Message, MessageId, OrderingKey, Subscriber, Topic};
pub use outbox::{EnqueueError, Enqueued, NewMessage, Outbox, OutboxTransaction, Rollback, TransactionError};
#[cfg(feature = "saga")]
pub use saga::{Sagas, Started, StepError, StepKey};
#[cfg(feature = "postgres")]
pub use sqlx::Postgres;
#[cfg(feature = "sqlite")]
pub use sqlx::Sqlite;

#[cfg(feature = "relay")]
pub use crate::Relay;
pub use crate::{migrate, shutdown_signal};
