//! Operators' questions and decisions, in SQLite.

mod decisions;
mod rows;
mod statements;
mod status;

use async_trait::async_trait;
use sqlx::Connection as _;
use time::OffsetDateTime;

use crate::admin::decision::{ChosenEntry, DecideError, OperatorDecision};
use crate::admin::entry::{AuditRecord, ListedEntry};
use crate::admin::status::{Blocker, RelayStatus};
use crate::admin::{LogAdmin, Operation};
use crate::sqlite::store::SqliteLog;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName};
use rows::{listed, record};
use statements::SQL;

#[async_trait]
impl LogAdmin for SqliteLog {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        self.status(None).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        Ok(self.status(Some(relay)).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        Ok(None)
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let list = match state {
            ExceptionState::Discarded => sqlx::query(&SQL.list_discarded).bind(relay.as_str()),
            _ => sqlx::query(&SQL.list).bind(relay.as_str()).bind(state.as_str()),
        };
        let rows = list
            .bind(after.0)
            .bind(i64::from(entries_max))
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("list entries"))?;
        rows.iter().map(|row| listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        decree.check(entries.len())?;
        let failed = || LogError::during("carry out the decision");
        let mut connection = self.connect().await?;
        let taken_until = match decree.decision.action().takes_retrying() {
            true => self.take_waiting(&mut connection, relay, entries).await?,
            false => None,
        };
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let mut verdicts = Vec::with_capacity(entries.len());
        for entry in entries {
            verdicts.push(Self::decide_one(&mut tx, relay, entry, &decree, taken_until).await?);
        }
        tx.commit().await.map_err(failed())?;
        Ok(verdicts)
    }

    async fn audit(&self, relay: &RelayName, records_max: u32) -> Result<Vec<AuditRecord>, LogError> {
        let rows = sqlx::query(&SQL.records)
            .bind(relay.as_str())
            .bind(i64::from(records_max))
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("list decisions"))?;
        rows.iter().map(|row| record(row).map_err(LogError::during("read a decision"))).collect()
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        self.read_pauses(relay).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        scope.check(actor, reason)?;
        self.set_paused(relay, scope, (actor, reason)).await
    }

    async fn resume(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        scope.check(actor, reason)?;
        self.end_pause(relay, scope, since, (actor, reason)).await
    }

    async fn operations(&self, relay: &RelayName, records_max: u32) -> Result<Vec<Operation>, LogError> {
        self.read_operations(relay, records_max).await
    }
}
