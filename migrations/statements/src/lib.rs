//! The outbox and the inbox for services that use another driver than sqlx: everything that must
//! happen in the service's own transaction, as single statements.
//!
//! The statements call the SQL functions of the schema, on PostgreSQL, by the `search_path` of the
//! session. This crate decides which one comes next, and reads its answer; the service's driver
//! sends it. So it depends on no driver, and a new version of one needs no new version of this
//! crate. `examples/drivers` has the sending part for Diesel, diesel-async, SeaORM and
//! tokio-postgres, in a file each.
//!
//! | module | contents |
//! |---|---|
//! | `statement` | [`Statement`], [`Value`], [`Row`]: what a driver sends and reads |
//! | `operation` | [`Call`]: runs an [`Operation`] statement by statement; [`Alone`]: those that need no transaction |
//! | `error` | [`Error`], [`Refused`]: why an operation failed; [`passes`]: the SQLSTATEs that say nothing about it |
//! | `outbox` | [`Outbox`]: its settings and its operations |
//! | `enqueue` | [`Enqueue`], [`Enqueued`]: a message in the caller's transaction |
//! | `verify` | [`Verify`]: the transaction still holds a message |
//! | `inbox` | [`Inbox`]: its settings and its operations |
//! | `admit` | [`Admit`], [`Admission`], [`Guard`], [`Known`], [`Refusal`]: a message takes effect once |
//! | `finish` | [`Finish`], [`Kept`]: the transaction still holds the effect; the proof after its commit |
//! | `fail` | [`Fail`], [`Failed`]: failures are counted, and become dead letters |
//! | `failure`, `outcome` | [`Failure`], [`Handled`], [`Outcome`]: why a message was not handled, and what became of it |
//! | `store` | [`Store`], [`DeadLetter`]: a delivery that is not a message |
//! | `redrive` | [`BeginRedrive`], [`TakeRedrive`], [`Redrive`], [`FailRedrive`]: redrives that operators asked for |
//! | `settings` | those of outboxes and inboxes |
//! | `maintain` | [`Maintain`]: the days that rows of the inbox lie in, and what is no longer needed |

mod admit;
mod enqueue;
mod error;
mod fail;
mod failure;
mod finish;
mod inbox;
mod maintain;
mod operation;
mod outbox;
mod outcome;
mod redrive;
mod settings;
mod statement;
mod store;
#[cfg(test)]
mod tests;
mod verify;

pub use admit::{Admission, Admit, Guard, Known, Refusal};
pub use enqueue::{Enqueue, Enqueued};
pub use error::{Error, Refused, passes};
pub use fail::{Fail, Failed};
pub use failure::Failure;
pub use finish::{Finish, Kept};
pub use inbox::Inbox;
pub use maintain::{Maintain, RETENTION_DAYS_DEFAULT, RETENTION_DAYS_MAX, RETENTION_DAYS_MIN};
pub use message;
pub use message::{ConsumerName, DeadLetterId, IntoMessage, NewMessage, Tenant};
pub use operation::{Alone, Call, Next, Operation};
pub use outbox::Outbox;
pub use outcome::{Handled, Outcome};
pub use redrive::{BeginRedrive, FailRedrive, Redrive, RedriveRequest, TakeRedrive};
pub use statement::{Row, Statement, Value};
pub use store::{DeadLetter, Store};
pub use verify::Verify;
