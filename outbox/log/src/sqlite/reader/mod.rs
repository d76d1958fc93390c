//! Reads the log and what is parked beside it. A mark is the last id.

mod differences;
mod parked;

use std::sync::Arc;

use async_trait::async_trait;
use message::Source;
use sqlx::{Sqlite, SqliteConnection};

use crate::cursor::{Difference, Mark};
use crate::entry::{EntryId, Page, PageLimit};
use crate::exception::{Exception, StuckPage};
use crate::lease::RelayName;
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::tables::Tables;
use crate::{LogError, LogReader, PauseScope};

pub(in crate::sqlite) struct SqliteReader {
    pub(in crate::sqlite) connection: SqliteConnection,
    pub(in crate::sqlite) relay: RelayName,
    pub(in crate::sqlite) source: Source,
    pub(in crate::sqlite) tables: Arc<Tables<Sqlite>>,
}

#[async_trait]
impl LogReader for SqliteReader {
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        self.difference_after(base).await
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        self.page(difference, after, limit).await
    }

    async fn read_due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError> {
        self.due(kind, after, limit).await
    }

    async fn read_first(&mut self, probes: &[EntryId], limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        self.first(probes, limit).await
    }

    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        self.held(asks, limit).await
    }

    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        self.queues(after, queues_max).await
    }

    async fn stuck(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError> {
        self.stuck_entries(after, walked_max, dead_blocks).await
    }

    async fn paused_scopes(&mut self) -> Result<Vec<PauseScope>, LogError> {
        self.tables.paused_scopes(&mut self.connection, &self.relay).await
    }
}
