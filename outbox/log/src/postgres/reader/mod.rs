//! Reads the log and what is parked beside it. The proof is in `postgres/mod.rs`.

mod differences;
mod parked;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::Source;
use sqlx::{PgConnection, Postgres};

use crate::cursor::{Difference, Mark};
use crate::entry::{EntryId, Page, PageLimit};
use crate::exception::{Exception, StuckPage};
use crate::failure::within;
use crate::lease::RelayName;
use crate::postgres::facts;
use crate::postgres::mark::PgMark;
use crate::postgres::page::Pace;
use crate::postgres::statements::Statements;
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::tables::Tables;
use crate::{LogError, LogReader, PauseScope};

/// The statements that a reader runs.
pub(in crate::postgres) struct Sql {
    pub(in crate::postgres) statements: Statements,
    pub(in crate::postgres) questions: facts::Statements,
    pub(in crate::postgres) tables: Arc<Tables<Postgres>>,
}

pub(in crate::postgres) struct PgReader {
    connection: PgConnection,
    relay: RelayName,
    source: Source,
    statements: Statements,
    tables: Arc<Tables<Postgres>>,
    questions: facts::Statements,
    call_timeout: Duration,
    /// The run of the server in which this reader was opened or has begun. It reads nothing of
    /// another run.
    run: Option<String>,
    /// A requested base, and a later mark with no row between the two.
    advanced: Option<(Mark, PgMark)>,
    pace: Pace,
    /// The pace of exceptions.
    parked_pace: Pace,
}

/// Makes the error for an answer from another history than the mark's. It ends the term, and the
/// cursor is compared again.
fn other_history(why: String) -> LogError {
    LogError::Unavailable { reason: why, source: None }
}

fn other_run() -> LogError {
    other_history(String::from(
        "the cursor was granted by another server, by this one before it crashed, or in another schema, which happens \
         without database.schema when the search_path finds a new outbox first",
    ))
}

impl PgReader {
    pub(in crate::postgres) async fn open(
        mut connection: PgConnection,
        relay: RelayName,
        source: Source,
        sql: Sql,
        call_timeout: Duration,
    ) -> Result<Self, LogError> {
        let Sql { statements, questions, tables } = sql;
        let run = run(&mut connection, &statements).await?;
        Ok(Self {
            connection,
            relay,
            source,
            statements,
            questions,
            tables,
            call_timeout,
            run,
            advanced: None,
            pace: Pace::default(),
            parked_pace: Pace::default(),
        })
    }

    /// Fails when a mark was taken in another run of the server than the reader's.
    fn check_mark(&mut self, mark: &PgMark) -> Result<(), LogError> {
        let Some(history) = &mark.history else { return Ok(()) };
        if self.run.get_or_insert_with(|| history.run.clone()) == &history.run {
            Ok(())
        } else {
            Err(other_run())
        }
    }

    /// Fails when a statement found nothing because the server is in another run. No run returns,
    /// so if the run is still the same now, it was also the same when the statement ran.
    async fn check_run(&mut self, found: usize) -> Result<(), LogError> {
        if found > 0 || self.run.is_none() || run(&mut self.connection, &self.statements).await? == self.run {
            return Ok(());
        }
        Err(other_run())
    }
}

/// Returns the server's current run, if one has begun.
async fn run(connection: &mut PgConnection, statements: &Statements) -> Result<Option<String>, LogError> {
    sqlx::query_scalar(&statements.run)
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("identify the run of the server"))
}

fn rows_max(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX - 1).clamp(1, i64::MAX - 1)
}

#[async_trait]
impl LogReader for PgReader {
    async fn begin(&mut self) -> Result<(), LogError> {
        let asked = run(&mut self.connection, &self.statements);
        self.run = within(self.call_timeout, asked).await?;
        self.advanced = None;
        Ok(())
    }

    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        self.difference_after(base).await
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        if PgMark::read(&difference.base)?.is_rebased {
            self.page_without(difference, after, limit).await
        } else {
            self.page(difference, after, limit).await
        }
    }

    async fn read_due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError> {
        within(self.call_timeout, self.due(kind, after, limit)).await
    }

    async fn read_first(&mut self, probes: &[EntryId], limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        within(self.call_timeout, self.first(probes, limit)).await
    }

    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        within(self.call_timeout, self.held(asks, limit)).await
    }

    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        within(self.call_timeout, self.queues(after, queues_max)).await
    }

    async fn stuck(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError> {
        within(self.call_timeout, self.stuck_entries(after, walked_max, dead_blocks)).await
    }

    async fn paused_scopes(&mut self) -> Result<Vec<PauseScope>, LogError> {
        let asked = self.tables.paused_scopes(&mut self.connection, &self.relay);
        within(self.call_timeout, asked).await
    }
}
