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

/// Maximum replies that are kept for steps of a saga that have not begun: replies to requests that
/// were never sent must not fill its mailbox.
pub(crate) const EARLY_MAX: i64 = 100;

/// The outcome of putting a reply into the mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replied {
    /// It is kept, for a saga that waits for it or will.
    Kept,
    /// A reply to the same request was kept before.
    Duplicate,
    /// Not kept: the request has its outcome without a reply, the saga is being or was undone, or
    /// 100 replies for steps that have not begun are kept already.
    Late,
    /// There is no such saga.
    Nobody,
}

/// Input and output of sagas. The callers decide what follows from it.
#[doc(hidden)]
pub trait Store: Backend {
    /// The rendered SQL.
    type SagaStatements: Send + Sync + 'static;

    /// Renders the SQL.
    fn saga_statements(schema: Option<&Identifier>) -> Self::SagaStatements;

    /// Begins a transaction that can write.
    fn begin_saga(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Inserts a saga unless its name is in use. Returns whether it was inserted.
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

    /// Claims due sagas for a lease, those that have waited longest first.
    fn claim_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        kind: (&str, u16),
        limit: u32,
        worker: &str,
        lease: Duration,
        pause: Backoff,
    ) -> impl Future<Output = Result<Vec<SagaRecord>>> + Send;

    /// Makes the leases of sagas last `lease` from now. Returns the sagas that are held and were
    /// not locked at that moment.
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

    /// Inserts a step if the saga is held and not cancelled. Returns whether it was inserted. A
    /// step that exists already is a violation of a key.
    fn insert_step(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a step if the saga is held and the step is as expected. Returns whether it was
    /// changed.
    fn change_step(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Stores a turn if the saga is held. Returns whether it was stored.
    fn turn(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &Held,
        turn: &Turn<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends sagas that ran to their ends, each only if it is held and not cancelled. Returns for
    /// each whether it was ended. After an error, all or none of this is stored.
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

    /// Lets a stuck saga continue. Returns whether it was stuck.
    fn retry_saga(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Has a running saga undone: at once if no worker owns it, otherwise by its worker. Returns
    /// whether it was running.
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

    /// Skips the undo of a step. Returns whether the step was to be undone.
    fn skip_undo(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        id: &SagaId,
        step: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Gives a step a result. Returns whether it was given. A step that has begun and has no
    /// outcome takes it. If the saga is stuck at this step (the flag), a step that has not begun or
    /// has an outcome takes it as well.
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

    /// Counts the sagas of each type and version whose turn is overdue by more than `by`.
    fn overdue(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        by: Duration,
    ) -> impl Future<Output = Result<Vec<Overdue>>> + Send;

    /// Deletes sagas that ended at least the retention ago, with their steps and replies, at most
    /// [`BATCH`](crate::retention::BATCH). The retention must be over by the database's clock and
    /// by the given reading of another clock. Returns how many sagas were deleted.
    fn forget_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        ended: (Duration, OffsetDateTime),
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes decisions from before a moment, at most [`BATCH`](crate::retention::BATCH). Returns
    /// how many were deleted.
    fn forget_decisions(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        before: OffsetDateTime,
    ) -> impl Future<Output = Result<u64>> + Send;
}
