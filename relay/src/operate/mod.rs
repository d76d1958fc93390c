//! Everything that operators ask and decide. The command line is one skin over it, which parses,
//! calls and prints; the page is another.
//!
//! Each function takes the [`Operator`] who calls it and refuses what its role does not permit,
//! before it connects to anything. Each decision is written to the audit of the database that it
//! changes, in the same transaction: who, when, what, the filter with the number of messages that
//! it chose, and why.
//!
//! | module | what it holds |
//! |---|---|
//! | [`operator`] | [`Operator`], [`Role`], [`Signed`]: who asks, what that permits, and why |
//! | [`places`] | [`Places`]: the outboxes and inboxes to look at |
//! | [`inbox_database`] | an inbox in either database |
//! | [`dead`] | parked messages of outboxes and dead letters of inboxes, in one shape |
//! | [`pause`] | pausing and resuming a pipeline, a topic or a key |
//! | [`held`](mod@held) | keys that wait, and the message that stops each |
//! | [`payload`](mod@payload) | the payload of one message, with a line in the audit |
//! | [`consumers`](mod@consumers) | how consumers are doing, as far as inboxes tell |
//! | [`status`](mod@status) | who leads, what waits, and why |
//! | [`lag`] | how far topics are behind |
//! | `adopt` (feature `postgres`) | a foreign outbox table whose producers need not change |
//! | `tables` | the database of keys and sagas |
//! | [`keys`] | idempotency keys whose holder is gone |
//! | [`sagas`] | sagas of a database |
//! | [`story`] | the whole story of a message |
//! | [`replay`] | publishing again what was published |
//! | [`tail`] | what is being published now |
//! | [`error`] | [`OperateError`]: why something was not done, and what to do next |

#[cfg(feature = "postgres")]
pub mod adopt;
pub mod consumers;
pub mod dead;
pub mod error;
pub mod held;
pub mod inbox_database;
pub mod keys;
pub mod lag;
pub mod operator;
pub(crate) mod pace;
pub mod pause;
pub mod payload;
pub mod places;
pub mod replay;
pub mod sagas;
pub(crate) mod seconds;
pub mod status;
pub mod story;
pub(crate) mod tables;
pub mod tail;
pub(crate) mod text;

pub use error::{OperateError, OperateErrorKind};
pub use operator::{Operator, Role, Signed};
pub use places::Places;
