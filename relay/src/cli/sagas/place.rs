//! The database of sagas.

use std::num::NonZeroU32;

use migrations::Identifier;
use outbox::Outbox;
use saga::{
    DecideError, Decision, Dialect, OpenError, SagaId, SagaQuery, SagaRecord, Signature, StepRecord,
    StoreError,
};
use serde_json::Value;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};

use super::super::database::{ConnectOptions, TablesDatabase};
use super::super::exit::Exit;
use super::super::failure::{Failure, exit_of, told};

/// The sagas of one database.
pub(crate) enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(saga::Sagas<Postgres>),
    Sqlite(saga::Sagas<Sqlite>),
}

impl Opened {
    pub(crate) async fn of(database: &TablesDatabase) -> Result<Self, Failure> {
        let goal = database.goal()?;
        let schema = goal.options.schema.clone();
        Ok(match goal.connect_options("relay sagas")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => Self::Postgres(open(options, schema).await?),
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }
}

async fn open<DB: Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<saga::Sagas<DB>, Failure> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let opened = saga::Sagas::builder(pool, Outbox::new()).schema(schema).open().await;
    opened.map_err(|error| match error {
        OpenError::Schema(error) => Failure::from(error),
        OpenError::Store(error) => failed(error),
        error => Failure::new(Exit::Usage, error),
    })
}

/// The same call on either database.
macro_rules! on {
    ($opened:expr, $sagas:ident => $call:expr) => {
        match $opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres($sagas) => $call.await,
            Opened::Sqlite($sagas) => $call.await,
        }
    };
}

impl Opened {
    pub(crate) async fn list(&self, query: &SagaQuery) -> Result<Vec<SagaRecord>, Failure> {
        on!(self, sagas => sagas.list(query)).map_err(failed)
    }

    pub(crate) async fn show(&self, id: &SagaId) -> Result<Option<(SagaRecord, Vec<StepRecord>)>, Failure> {
        on!(self, sagas => sagas.show(id)).map_err(failed)
    }

    pub(crate) async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, Failure> {
        on!(self, sagas => sagas.decisions(limit)).map_err(failed)
    }

    pub(crate) async fn retry(&self, id: &SagaId, signature: &Signature) -> Result<(), Failure> {
        on!(self, sagas => sagas.retry(id, signature)).map_err(refused)
    }

    pub(crate) async fn cancel(&self, id: &SagaId, signature: &Signature) -> Result<(), Failure> {
        on!(self, sagas => sagas.cancel(id, signature)).map_err(refused)
    }

    pub(crate) async fn skip(
        &self,
        id: &SagaId,
        step: &str,
        result: &Value,
        signature: &Signature,
    ) -> Result<(), Failure> {
        on!(self, sagas => sagas.skip(id, step, result, signature)).map_err(refused)
    }

    pub(crate) async fn close(self) {
        on!(self, sagas => sagas.pool().close());
    }
}

fn failed(error: StoreError) -> Failure {
    Failure::new(exit_of(error.fault()), told(&error))
}

fn refused(error: DecideError) -> Failure {
    match error {
        DecideError::Store(error) => failed(error),
        error => Failure::new(Exit::Usage, error),
    }
}
