//! Operators' queries and decisions, in SQLite.

mod decisions;
mod desk;
mod statements;
mod status;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::decision::{ChosenEntry, DecideError, OperatorDecision};
use crate::admin::entry::{AuditQuery, AuditRecord, AuditSlice, ListedEntry};
use crate::admin::status::{Blocker, Picture, RelayStatus};
use crate::admin::{Desk, EditRecord, LogAdmin, Operation, ParkedContent};
use crate::sqlite::store::SqliteLog;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName};
use desk::SqliteDesk;

#[async_trait]
impl LogAdmin for SqliteLog {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        self.status(&mut self.connect().await?, None).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        Ok(self.status(&mut self.connect().await?, Some(relay)).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        Ok(None)
    }

    async fn picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        let mut connection = self.connect().await?;
        let found = self.status(&mut connection, Some(relay)).await?.pop();
        let errors = match &found {
            Some(status) => self.tables.errors(&mut connection, relay, &status.exceptions).await?,
            None => Vec::new(),
        };
        let pauses = self.tables.pauses(&mut connection, relay).await?;
        Ok(Picture { relay: found, blocker: None, pauses, errors, processes: None })
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        self.tables.list(&mut self.connect().await?, relay, state, after, entries_max).await
    }

    async fn discarded(&self, relay: &RelayName, message_ids: &[Uuid]) -> Result<Vec<ListedEntry>, LogError> {
        self.tables.discarded(&mut self.connect().await?, relay, message_ids).await
    }

    async fn held(&self, relay: &RelayName, entries_max: u32) -> Result<Vec<ListedEntry>, LogError> {
        self.tables.held(&mut self.connect().await?, relay, entries_max).await
    }

    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        self.desk(relay).decide(entries, &decree, None).await
    }

    fn desk(&self, relay: &RelayName) -> Box<dyn Desk> {
        Box::new(SqliteDesk::new(self.clone(), relay.clone()))
    }

    async fn audit_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        self.tables.decisions(&mut self.connect().await?, relay, before, records_max).await
    }

    async fn audited(&self, relay: &RelayName, asked: &AuditQuery) -> Result<AuditSlice, LogError> {
        self.tables.decided(&mut self.connect().await?, relay, asked).await
    }

    async fn audit_of(
        &self,
        relay: &RelayName,
        message_id: Uuid,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        self.tables.decisions_of(&mut self.connect().await?, relay, message_id, records_max).await
    }

    async fn content(
        &self,
        relay: &RelayName,
        entry: &ChosenEntry,
    ) -> Result<Option<ParkedContent>, LogError> {
        self.tables.content(&mut self.connect().await?, relay, entry).await
    }

    async fn edit(&self, relay: &RelayName, number: i64) -> Result<Option<EditRecord>, LogError> {
        self.tables.edit(&mut self.connect().await?, relay, number).await
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        self.tables.pauses(&mut self.connect().await?, relay).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        let by = scope.signed(actor, reason)?;
        self.tables.pause(&mut self.connect().await?, relay, scope, &by).await
    }

    async fn resume(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        let by = scope.signed(actor, reason)?;
        self.tables.resume(&mut self.connect().await?, relay, scope, since, &by).await
    }

    async fn operations_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        self.tables.operations(&mut self.connect().await?, relay, before, records_max).await
    }

    async fn operations_of(
        &self,
        relay: &RelayName,
        action: &str,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let mut connection = self.connect().await?;
        self.tables.operations_of(&mut connection, relay, action, before, records_max).await
    }
}
