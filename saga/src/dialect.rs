//! The differences between the databases. Sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use inbox::Backoff;
use migrations::{Backend, Identifier};
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;

use crate::admin::{Decision, Overdue, SagaQuery};
use crate::key::SagaId;
use crate::record::{Commits, Held, NewStep, SagaRecord, StepChange, StepRecord, Turn};

/// A database that sagas have tables in: PostgreSQL or SQLite.
pub trait Dialect: outbox::Dialect + inbox::dialect::Dialect + Store {}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {}

type Result<T> = std::result::Result<T, sqlx::Error>;

/// How many replies are kept for steps of a saga that have not begun: who replies to what was never
/// asked must not fill its mailbox.
pub(crate) const EARLY_MAX: i64 = 100;

/// The outcome of putting a reply into the mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replied {
    /// It is kept, for a saga that waits for it or will.
    Kept,
    /// A reply to the same request was kept before.
    Duplicate,
    /// The request has its outcome without a reply, or the saga is being undone, or was; or 100
    /// replies are kept already for steps of it that have not begun, and this is another one.
    Late,
    /// There is no such saga.
    Nobody,
}

/// Input and output. What follows from it is decided by the callers.
#[doc(hidden)]
pub trait Store: Backend {
    /// The rendered SQL.
    type SagaStatements: Send + Sync + 'static;

    /// Renders the SQL.
    fn saga_statements(schema: Option<&Identifier>) -> Self::SagaStatements;

    /// Begins a transaction that can write.
    fn begin_saga(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Inserts a saga unless its name is used; whether it did.
    fn insert_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        version: u16,
        input: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads a saga.
    fn find_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<Option<SagaRecord>>> + Send;

    /// Reads a saga and its steps without their contents.
    fn look_at_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<Option<(SagaRecord, Vec<StepRecord>)>>> + Send;

    /// Takes sagas that are due, those that wait longest first, for a lease.
    fn claim_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        kind: (&str, u16),
        limit: u32,
        worker: &str,
        lease: Duration,
        pause: Backoff,
    ) -> impl Future<Output = Result<Vec<SagaRecord>>> + Send;

    /// Makes the leases of sagas last so long from now; returns those that are held and were not
    /// locked at the moment.
    fn renew_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &[Held],
        lease: Duration,
    ) -> impl Future<Output = Result<HashSet<Held>>> + Send;

    /// Returns for each kind whether a saga of it is due.
    fn due_kinds(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        kinds: &[(String, u16)],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Forgets the failures of a saga, if it is held.
    fn got_on(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads the steps of a saga, in their order.
    fn steps(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<Vec<StepRecord>>> + Send;

    /// Reads the mailbox of a saga: steps and payloads.
    fn mailbox(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;

    /// Inserts a step, if the saga is held and nobody has cancelled it; whether it did. A step that
    /// is there is a violation of a key.
    fn insert_step(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a step, if the saga is held and the step is as expected; whether it did.
    fn change_step(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Takes a turn, if the saga is held; whether it did.
    fn turn(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        turn: &Turn<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends sagas that ran to their ends, each if it is held and nobody has cancelled it; for each
    /// whether it did. All or none of it is stored after an error.
    fn finish_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        endings: &[(&Held, &str)],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Puts a reply into the mailbox and wakes the saga.
    fn put_reply(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        step: &str,
        payload: &str,
    ) -> impl Future<Output = Result<Replied>> + Send;

    /// Reads sagas, oldest first.
    fn list_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        query: &SagaQuery,
    ) -> impl Future<Output = Result<Vec<SagaRecord>>> + Send;

    /// Lets a stuck saga go on; whether it was stuck.
    fn retry_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Has a running saga undone: at once if nobody owns it, otherwise by its worker. Whether it
    /// was running.
    fn cancel_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        reason: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Locks a saga until the transaction ends, and reads it without its contents.
    fn lock_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<Option<SagaRecord>>> + Send;

    /// Skips the undo of a step that was to be undone; whether it was.
    fn skip_undo(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        step: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Gives a step a result; whether it was given. One that has begun and has no outcome takes it.
    /// Where the saga is stuck at this step (the flag), so does one that has not begun or has one.
    fn skip_step(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        step: (&str, bool),
        result: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Notes a decision.
    fn note_saga_decision(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        decision: &Decision,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads the decisions, the latest first.
    fn list_decisions(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Decision>>> + Send;

    /// Counts sagas whose turn is overdue by more than this, by type and version.
    fn overdue(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        by: Duration,
    ) -> impl Future<Output = Result<Vec<Overdue>>> + Send;

    /// Deletes sagas that ended a retention ago, by the database's clock and by another one's
    /// reading, with steps and replies, at most [`BATCH`](crate::retention::BATCH); how many.
    fn forget_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        ended: (Duration, OffsetDateTime),
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes decisions from before a moment, at most [`BATCH`](crate::retention::BATCH); how
    /// many.
    fn forget_decisions(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        before: OffsetDateTime,
    ) -> impl Future<Output = Result<u64>> + Send;
}
