//! Operators' queries and decisions, in PostgreSQL.

mod decisions;
mod desk;
pub(super) mod statements;
mod status;

use async_trait::async_trait;
use sqlx::{Executor as _, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::decision::{ChosenEntry, DecideError, OperatorDecision};
use crate::admin::entry::{AuditQuery, AuditRecord, AuditSlice, ListedEntry};
use crate::admin::status::{Blocker, Picture, RelayStatus};
use crate::admin::{Desk, EditRecord, LogAdmin, Operation, ParkedContent};
use crate::failure::within;
use crate::postgres::brief::Brief;
use crate::postgres::store::{ONE_PLAN_HERE, PostgresLog};
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName};
use desk::PostgresDesk;

impl PostgresLog {
    pub(super) async fn admin(&self) -> Result<Brief, LogError> {
        // Boxed: the future that opens a connection is large, and every query begins with it.
        Box::pin(self.connect("relay admin")).await.map(Brief::new)
    }

    /// Opens a session for queries, in a transaction that ends with it.
    pub(super) async fn look(&self) -> Result<Brief, LogError> {
        let mut connection = self.admin().await?;
        begin_to_look(&mut connection).await?;
        Ok(connection)
    }
}

/// Begins a transaction for queries.
async fn begin_to_look(connection: &mut PgConnection) -> Result<(), LogError> {
    let begin = async {
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY").await?;
        connection.execute(ONE_PLAN_HERE).await
    };
    begin.await.map(drop).map_err(LogError::during("begin reading"))
}

#[async_trait]
impl LogAdmin for PostgresLog {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        let ask = async { self.status(&mut *self.look().await?, None).await };
        self.within(self.options.call_timeout, ask).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        let ask = async { self.status(&mut *self.look().await?, Some(relay)).await };
        Ok(self.within(self.options.call_timeout, ask).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        let ask = async { self.read_blocker(&mut *self.look().await?).await };
        self.within(self.options.call_timeout, ask).await
    }

    async fn picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        self.within(self.options.call_timeout, self.read_picture(relay)).await
    }

    async fn lock_holder(&self) -> Result<Option<String>, LogError> {
        self.asked_for_lock().await
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let ask =
            async { self.tables.list(&mut *self.look().await?, relay, state, after, entries_max).await };
        within(self.options.call_timeout, ask).await
    }

    async fn discarded(&self, relay: &RelayName, message_ids: &[Uuid]) -> Result<Vec<ListedEntry>, LogError> {
        let ask = async { self.tables.discarded(&mut *self.look().await?, relay, message_ids).await };
        within(self.options.call_timeout, ask).await
    }

    async fn held(&self, relay: &RelayName, entries_max: u32) -> Result<Vec<ListedEntry>, LogError> {
        let ask = async { self.tables.held(&mut *self.look().await?, relay, entries_max).await };
        within(self.options.call_timeout, ask).await
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
        Box::new(PostgresDesk::new(self.clone(), relay.clone()))
    }

    async fn audit_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let ask = async { self.tables.decisions(&mut *self.look().await?, relay, before, records_max).await };
        within(self.options.call_timeout, ask).await
    }

    async fn audited(&self, relay: &RelayName, asked: &AuditQuery) -> Result<AuditSlice, LogError> {
        let ask = async { self.tables.decided(&mut *self.look().await?, relay, asked).await };
        within(self.options.call_timeout, ask).await
    }

    async fn audit_of(
        &self,
        relay: &RelayName,
        message_id: Uuid,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let ask = async {
            self.tables.decisions_of(&mut *self.look().await?, relay, message_id, records_max).await
        };
        within(self.options.call_timeout, ask).await
    }

    async fn content(
        &self,
        relay: &RelayName,
        entry: &ChosenEntry,
    ) -> Result<Option<ParkedContent>, LogError> {
        let ask = async { self.tables.content(&mut *self.look().await?, relay, entry).await };
        within(self.options.call_timeout, ask).await
    }

    async fn edit(&self, relay: &RelayName, number: i64) -> Result<Option<EditRecord>, LogError> {
        let ask = async { self.tables.edit(&mut *self.look().await?, relay, number).await };
        within(self.options.call_timeout, ask).await
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        let ask = async { self.tables.pauses(&mut *self.look().await?, relay).await };
        within(self.options.call_timeout, ask).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        let by = scope.signed(actor, reason)?;
        let paused = async { self.tables.pause(&mut *self.admin().await?, relay, scope, &by).await };
        within(self.options.call_timeout, paused).await
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
        let resumed = async { self.tables.resume(&mut *self.admin().await?, relay, scope, since, &by).await };
        within(self.options.call_timeout, resumed).await
    }

    async fn operations_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let ask =
            async { self.tables.operations(&mut *self.look().await?, relay, before, records_max).await };
        within(self.options.call_timeout, ask).await
    }

    async fn operations_of(
        &self,
        relay: &RelayName,
        action: &str,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let ask = async {
            let mut connection = self.look().await?;
            self.tables.operations_of(&mut connection, relay, action, before, records_max).await
        };
        within(self.options.call_timeout, ask).await
    }
}
