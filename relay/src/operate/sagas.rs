//! Sagas of a database, and decisions about them.

use std::num::NonZeroU32;

use message::error_text;
use migrations::Identifier;
use outbox::Outbox;
use saga::{
    DecideError, Decision, Dialect, OpenError, SagaId, SagaQuery, SagaRecord, StepRecord, StoreError,
};
use serde_json::Value;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::tables::{ConnectOptions, Tables};

/// The sagas of one database.
pub(crate) enum SagaDatabase {
    #[cfg(feature = "postgres")]
    Postgres(saga::Sagas<Postgres>),
    Sqlite(saga::Sagas<Sqlite>),
}

impl SagaDatabase {
    /// Connects to a database.
    pub(crate) async fn open(tables: &Tables) -> Result<Self, OperateError> {
        let schema = tables.options.schema.clone();
        Ok(match tables.connect_options("relay sagas")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => Self::Postgres(open(options, schema).await?),
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }
}

async fn open<DB: Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<saga::Sagas<DB>, OperateError> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let opened = saga::Sagas::builder(pool, Outbox::new()).schema(schema).open().await;
    opened.map_err(|error| match error {
        OpenError::Schema(error) => OperateError::new(OperateErrorKind::NoTables, error),
        OpenError::Store(error) => failed(error),
        error => OperateError::new(OperateErrorKind::Refused, error),
    })
}

/// The same call on either database.
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
    pub(crate) async fn list(
        &self,
        operator: &Operator,
        query: &SagaQuery,
    ) -> Result<Vec<SagaRecord>, OperateError> {
        operator.permit(Role::Viewer, "look at sagas")?;
        on!(self, sagas => sagas.list(query)).map_err(failed)
    }

    /// One saga with its steps. Cancel-safe.
    pub(crate) async fn show(
        &self,
        operator: &Operator,
        id: &SagaId,
    ) -> Result<Option<(SagaRecord, Vec<StepRecord>)>, OperateError> {
        operator.permit(Role::Viewer, "look at sagas")?;
        on!(self, sagas => sagas.look(id)).map_err(failed)
    }

    /// The decisions taken so far, the latest first. Cancel-safe.
    pub(crate) async fn decisions(
        &self,
        operator: &Operator,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        operator.permit(Role::Viewer, "read the audit of sagas")?;
        on!(self, sagas => sagas.decisions(limit)).map_err(failed)
    }

    /// Lets a stuck saga go on. Not cancel-safe: look at it again.
    pub(crate) async fn retry(&self, signed: &Signed, id: &SagaId) -> Result<(), OperateError> {
        signed.check("retry sagas")?;
        on!(self, sagas => sagas.retry(id, &signed.signature(None))).map_err(refused)
    }

    /// Has a running saga undone. Not cancel-safe: look at it again.
    pub(crate) async fn cancel(&self, signed: &Signed, id: &SagaId) -> Result<(), OperateError> {
        signed.check("cancel sagas")?;
        on!(self, sagas => sagas.cancel(id, &signed.signature(None))).map_err(refused)
    }

    /// Skips a step of a stuck saga. Not cancel-safe: look at it again.
    pub(crate) async fn skip(
        &self,
        signed: &Signed,
        id: &SagaId,
        step: &str,
        result: Option<&Value>,
    ) -> Result<(), OperateError> {
        signed.check("skip steps of sagas")?;
        on!(self, sagas => sagas.skip(id, step, result, &signed.signature(None))).map_err(refused)
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        on!(self, sagas => sagas.pool().close());
    }
}

fn failed(error: StoreError) -> OperateError {
    OperateError::by_fault(error.fault(), error_text::chain(&error))
}

fn refused(error: DecideError) -> OperateError {
    match error {
        DecideError::Store(error) => failed(error),
        error @ DecideError::NotNow { .. } => OperateError::new(OperateErrorKind::Conflict, error),
        error => OperateError::new(OperateErrorKind::Refused, error),
    }
}
