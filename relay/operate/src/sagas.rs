//! Sagas of a database, and decisions about them.

use std::num::NonZeroU32;

use message::error_text;
use migrations::Identifier;
use outbox::Outbox;
use saga::{
    Choice, DecideError, Decision, Dialect, OpenError, SagaId, SagaOfId, SagaOutline, SagaQuery, Seen,
    StepRecord, StoreError,
};
use sqlx::{Pool, Sqlite};

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::tables::{Opened, Postgres, Tables, close, on};

/// The sagas of one database.
pub type SagaDatabase = Opened<saga::Sagas<Postgres>, saga::Sagas<Sqlite>>;

async fn open<DB: Dialect>(
    pool: Pool<DB>,
    schema: Option<Identifier>,
) -> Result<saga::Sagas<DB>, OperateError> {
    let opened = saga::Sagas::builder(pool, Outbox::new()).schema(schema).open().await;
    opened.map_err(|error| match error {
        OpenError::Schema(error) => OperateError::of_schema(error),
        OpenError::Store(error) => OperateError::by_fault(error.fault(), error_text::chain(&error)),
        error => OperateError::new(OperateErrorKind::Refused, error),
    })
}

impl SagaDatabase {
    /// Connects to a database.
    ///
    /// # Errors
    /// [`OperateError`] when the database has no such tables or is unreachable.
    pub async fn open(tables: &Tables) -> Result<Self, OperateError> {
        tables.open("relay sagas", open, open).await
    }

    /// Lists sagas. Cancel-safe.
    pub async fn list(
        &self,
        operator: &Operator,
        query: &SagaQuery,
    ) -> Result<Vec<SagaOutline>, OperateError> {
        operator.permit(Role::Viewer, "view sagas")?;
        self.answer(on!(&self.on, sagas => sagas.list(query).await).map_err(failed))
    }

    /// Returns a saga with its steps. Cancel-safe.
    pub async fn show(
        &self,
        operator: &Operator,
        id: &SagaId,
    ) -> Result<Option<(SagaOutline, Vec<StepRecord>)>, OperateError> {
        operator.permit(Role::Viewer, "view sagas")?;
        self.answer(on!(&self.on, sagas => sagas.look(id).await).map_err(failed))
    }

    /// Returns the decisions with numbers below `before`, latest first. Cancel-safe.
    pub async fn decisions(
        &self,
        operator: &Operator,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        operator.permit(Role::Viewer, "read the audit of sagas")?;
        self.answer(on!(&self.on, sagas => sagas.decisions_before(before, limit).await).map_err(failed))
    }

    /// Retries a stuck saga, cancels a running one, or skips a step of a stuck one. With `seen`,
    /// decides only if the saga has not changed since. Not cancel-safe: check the saga again.
    pub async fn decide(
        &self,
        signed: &Signed,
        id: &SagaId,
        choice: Choice,
        seen: Option<Seen>,
    ) -> Result<(), OperateError> {
        signed.check("decide about sagas")?;
        self.answer(
            on!(&self.on, sagas => sagas.decide(id, choice, seen, &signed.signature(None)).await)
                .map_err(refused),
        )
    }

    /// Returns the sagas with an id.
    pub(crate) async fn of_id(&self, id: &str) -> Result<Vec<SagaOfId>, OperateError> {
        self.answer(on!(&self.on, sagas => sagas.of_id(id).await).map_err(failed))
    }

    /// Removes what an ended saga holds.
    pub(crate) async fn erase(&self, id: &SagaId) -> Result<bool, OperateError> {
        self.answer(on!(&self.on, sagas => sagas.erase(id).await).map_err(failed))
    }

    /// Closes the connection.
    pub async fn close(self) {
        on!(&self.on, sagas => close(sagas.pool()).await);
    }
}

fn failed(error: StoreError) -> OperateError {
    OperateError::of_statement(error.fault(), &error)
}

fn refused(error: DecideError) -> OperateError {
    match error {
        DecideError::Store(error) => failed(error),
        error @ DecideError::Unknown(_) => OperateError::unknown(error),
        error @ DecideError::NotNow { .. } => OperateError::new(OperateErrorKind::Conflict, error),
        error @ DecideError::Changed { .. } => OperateError::new(OperateErrorKind::Conflict, error)
            .with_help("nothing was changed: check the saga again"),
        error => OperateError::new(OperateErrorKind::Refused, error),
    }
}
