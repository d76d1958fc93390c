//! Transactions that cannot lose a message.
//!
//! | module | contents |
//! |---|---|
//! | [`OutboxTransaction`] | a transaction that refuses to commit after a failed enqueue, and verifies that it is still alive before its commit |
//! | `commit` | [`CommitError`], [`UnknownCommit`] |
//! | `resolve` | [`CommitOutcome`]: the outcome of an unknown commit |
//! | `retry` | [`RetryPolicy`] |
//! | `run` | [`Outbox::transaction`](crate::Outbox::transaction): runs to completion, retries, never guesses |
//! | [`Running`] | a transaction that runs to its end |
//! | [`Rollback`] | an error for work without its own error type |
//! | [`Work`] | the work of a transaction |
//! | `ids` | the same message ids on every attempt |
//! | `failed_call` | the first failed call, which prevents the commit |
//! | `adopted` | transactions that inbox, keys and sagas use |

mod adopted;
mod commit;
mod failed_call;
mod ids;
mod resolve;
mod retry;
mod rollback;
mod run;
mod running;
mod work;
mod wrapper;

#[doc(hidden)]
pub use adopted::Sealed;
pub use commit::{CommitError, UnknownCommit};
#[doc(hidden)]
pub use failed_call::FailedCall;
pub use resolve::{CommitOutcome, ResolveError};
pub use retry::RetryPolicy;
pub use rollback::Rollback;
pub use run::TransactionError;
pub use running::{Accepts, Running};
pub use work::Work;
pub use wrapper::OutboxTransaction;
