//! A connection for one job of an operator.

use async_trait::async_trait;
use sqlx::{Connection as _, SqliteConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::decision::{Batch, ChosenEntry, DecideError, OperatorDecision};
use crate::admin::{
    Confirmed, DecisionRecord, Desk, FoundParked, ListedEntry, ParkedFilter, ParkedQuery, ParkedSlice, Survey,
};
use crate::sqlite::store::SqliteLog;
use crate::{ExceptionState, LogError, RelayName};

/// A relay, and a connection that is opened with the first call. A call that fails or is dropped
/// closes it.
pub(super) struct SqliteDesk {
    log: SqliteLog,
    relay: RelayName,
    connection: Option<SqliteConnection>,
}

impl SqliteDesk {
    pub(super) fn new(log: SqliteLog, relay: RelayName) -> Self {
        Self { log, relay, connection: None }
    }

    async fn take(&mut self) -> Result<SqliteConnection, LogError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.log.connect().await,
        }
    }
}

#[async_trait]
impl Desk for SqliteDesk {
    async fn parked(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<ListedEntry>, LogError> {
        let mut connection = self.take().await?;
        let found = self.log.tables.matching(&mut connection, &self.relay, query).await?;
        self.connection = Some(connection);
        Ok(found)
    }

    async fn choose(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<FoundParked>, LogError> {
        let mut connection = self.take().await?;
        let found = self.log.tables.choose(&mut connection, &self.relay, query).await?;
        self.connection = Some(connection);
        Ok(found)
    }

    async fn now(&mut self) -> Result<OffsetDateTime, LogError> {
        let mut connection = self.take().await?;
        let found = self.log.tables.now(&mut connection).await?;
        self.connection = Some(connection);
        Ok(found)
    }

    async fn survey(&mut self, state: ExceptionState, filter: &ParkedFilter) -> Result<Survey, LogError> {
        let mut connection = self.take().await?;
        let found = self.log.tables.survey(&mut connection, &self.relay, state, filter).await?;
        self.connection = Some(connection);
        Ok(found)
    }

    async fn decide(
        &mut self,
        entries: &[ChosenEntry],
        decree: &OperatorDecision,
        confirmed: Option<Confirmed>,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        decree.check(entries.len())?;
        let failed = || LogError::during("carry out the decision");
        let mut connection = self.take().await?;
        let batch = Batch { relay: &self.relay, entries, decree, confirmed };
        let taken_until = if decree.decision.action().takes_retrying() {
            self.log.take_waiting(&mut connection, batch).await?
        } else {
            None
        };
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let mut verdicts = Vec::with_capacity(entries.len());
        for entry in entries {
            verdicts.push(self.log.decide_one(&mut tx, batch, entry, taken_until).await?);
        }
        tx.commit().await.map_err(DecideError::of_commit)?;
        self.connection = Some(connection);
        Ok(verdicts)
    }

    async fn decision(&mut self, id: Uuid) -> Result<Option<DecisionRecord>, LogError> {
        let mut connection = self.take().await?;
        let found = self.log.tables.decision(&mut connection, &self.relay, id).await?;
        self.connection = Some(connection);
        Ok(found)
    }
}
