//! Sagas of a database, and decisions about them.

use std::num::NonZeroU32;

use message::error_text;
use migrations::Identifier;
use outbox::Outbox;
use saga::{
    Choice, DecideError, Decision, Dialect, OpenError, SagaId, SagaOutline, SagaQuery, Seen, StepRecord,
    StoreError,
};
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
#[cfg(feature = "postgres")]
use super::tables::reached;
use super::tables::{ConnectOptions, Tables, close, open_with};

/// The sagas of one database.
pub enum SagaDatabase {
    /// In PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(saga::Sagas<Postgres>),
    /// In SQLite.
    Sqlite(saga::Sagas<Sqlite>),
}

impl SagaDatabase {
    /// Connects to a database.
    pub async fn open(tables: &Tables) -> Result<Self, OperateError> {
        let schema = tables.options.schema.clone();
        Ok(match tables.connect_options("relay sagas")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => {
                Self::Postgres(open(reached(&options).await?, schema).await?)
            }
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }
}

async fn open<DB: Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<saga::Sagas<DB>, OperateError> {
    let open = async |pool| saga::Sagas::builder(pool, Outbox::new()).schema(schema).open().await;
    open_with(options, open).await.map_err(|error| match error {
        OpenError::Schema(error) => OperateError::new(OperateErrorKind::NoTables, error),
        OpenError::Store(error) => OperateError::by_fault(error.fault(), error_text::chain(&error)),
        error => OperateError::new(OperateErrorKind::Refused, error),
    })
}

/// Makes the same call on either database.
macro_rules! on {
    ($opened:expr, $sagas:ident => $call:expr) => {
        match $opened {
            #[cfg(feature = "postgres")]
            SagaDatabase::Postgres($sagas) => $call.await,
            SagaDatabase::Sqlite($sagas) => $call.await,
        }
    };
}

impl SagaDatabase {
    /// Lists sagas. Cancel-safe.
    pub async fn list(
        &self,
        operator: &Operator,
        query: &SagaQuery,
    ) -> Result<Vec<SagaOutline>, OperateError> {
        operator.permit(Role::Viewer, "view sagas")?;
        on!(self, sagas => sagas.list(query)).map_err(failed)
    }

    /// Returns a saga with its steps. Cancel-safe.
    pub async fn show(
        &self,
        operator: &Operator,
        id: &SagaId,
    ) -> Result<Option<(SagaOutline, Vec<StepRecord>)>, OperateError> {
        operator.permit(Role::Viewer, "view sagas")?;
        on!(self, sagas => sagas.look(id)).map_err(failed)
    }

    /// Returns the decisions with numbers below `before`, latest first. Cancel-safe.
    pub async fn decisions(
        &self,
        operator: &Operator,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        operator.permit(Role::Viewer, "read the audit of sagas")?;
        on!(self, sagas => sagas.decisions_before(before, limit)).map_err(failed)
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
        on!(self, sagas => sagas.decide(id, choice, seen, &signed.signature(None))).map_err(refused)
    }

    /// Closes the connection.
    pub async fn close(self) {
        on!(self, sagas => close(sagas.pool()));
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
