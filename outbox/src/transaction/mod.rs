//! Transactions that cannot lose a message.
//!
//! | module | what it holds |
//! |---|---|
//! | [`OutboxTransaction`] | a transaction that refuses to commit after a failed enqueue, and checks that its commit happened |
//! | [`commit`] | [`CommitError`], [`UnknownCommit`] |
//! | [`resolve`] | [`CommitOutcome`]: what became of an unknown commit |
//! | [`retry`] | [`RetryPolicy`] |
//! | [`run`] | [`Outbox::transaction`](crate::Outbox::transaction): runs to completion, tries again, never guesses |
//! | [`Rollback`] | an error for work that needs none of its own |
//! | [`Work`] | what runs in it |
//! | `ids` | the same message ids on every attempt |

pub mod commit;
mod ids;
pub mod resolve;
pub mod retry;
mod rollback;
pub mod run;
mod work;
mod wrapper;

pub use commit::{CommitError, UnknownCommit};
pub use resolve::{CommitOutcome, ResolveError};
pub use retry::RetryPolicy;
pub use rollback::Rollback;
pub use run::TransactionError;
pub use work::Work;
pub use wrapper::OutboxTransaction;
