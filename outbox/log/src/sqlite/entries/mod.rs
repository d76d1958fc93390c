//! Single entries of the log, in SQLite.

mod statements;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use migrations::query::Row;
use outbox::sqlite::clock::micros;
use sqlx::{Row as _, Sqlite};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::entry::at_micros;
use crate::admin::status::COUNTED_MAX;
use crate::entries::lag::by_topic;
use crate::entries::selection::{ENTRIES_PER_CALL, LABEL_BYTES_PER_CALL, made_at, smallest_id};
use crate::entries::{
    EntryRef, Extent, FoundEntry, LogEntries, SelectedPage, Selection, StoredPayload, TopicLag,
    UNREAD_COUNTED_MAX,
};
use crate::row::Names;
use crate::sqlite::reconcile::passed;
use crate::sqlite::row::{columns, row_max};
use crate::sqlite::store::SqliteLog;
use crate::tables::{Done, Signature};
use crate::{Entry, EntryId, LogError, RelayName, RowLimit, rows};
use statements::{FIRST, SQL};

/// Returns the statement that finds an entry.
#[cfg(test)]
pub(super) fn find_statement() -> &'static migrations::Statement {
    &SQL.find
}

/// Returns the id up to which the relay has passed.
fn passed_to(extent: &Extent) -> Result<i64, LogError> {
    extent.cursor.as_deref().map_or(Ok(0), passed)
}

#[async_trait]
impl LogEntries for SqliteLog {
    async fn find(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError> {
        let failed = || LogError::during("look up the entry");
        let passed = passed_to(&self.extent(relay).await?)?;
        let (id, message_id) = match which {
            EntryRef::Id(id) => (Some(id.0), None),
            EntryRef::MessageId(id) => (None, Some(id.to_string())),
        };
        let rows = sqlx::query(&SQL.find)
            .bind(relay.as_str())
            .bind(passed)
            .bind(id)
            .bind(message_id)
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(failed())?;
        let found = |row| rows::found(&Row::<Sqlite>::of(row)).map_err(failed())?;
        rows.into_iter().map(found).collect()
    }

    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        let failed = || LogError::during("read the first and last position of the log");
        let row = sqlx::query(&SQL.extent)
            .bind(relay.as_str())
            .fetch_one(&mut self.connect().await?)
            .await
            .map_err(failed())?;
        let extent = || -> Result<Extent, sqlx::Error> {
            let time = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.map(at_micros));
            let oldest = row.try_get::<Option<i64>, _>("oldest_id")?.map(EntryId);
            let expired: Option<String> = row.try_get("expired_through")?;
            Ok(Extent {
                now: at_micros(row.try_get("now")?),
                cursor: row.try_get("cursor")?,
                checkpoint_at: time("checkpoint_at")?,
                is_of_this_server: true,
                oldest: oldest.zip(time("oldest_at")?),
                newest: row.try_get::<Option<i64>, _>("newest_id")?.map(EntryId),
                expired_through: expired.and_then(|id| Uuid::parse_str(&id).ok()).and_then(made_at),
            })
        };
        extent().map_err(failed())
    }

    async fn select(
        &self,
        relay: &RelayName,
        extent: &Extent,
        selection: &Selection,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        let failed = || LogError::during("choose entries");
        let Some(range) = selection.range(extent, after) else { return Ok(SelectedPage::end(after)) };
        let ids: Vec<i64> = selection.named.iter().map(|name| name.id.0).collect();
        let message_ids: Vec<String> =
            selection.named.iter().map(|name| name.message_id.to_string()).collect();
        let rows = sqlx::query(&SQL.select)
            .bind(relay.as_str())
            .bind(passed_to(extent)?)
            .bind(range.above)
            .bind(range.to)
            .bind((!ids.is_empty()).then(|| serde_json::Value::from(ids).to_string()))
            .bind(&selection.topic)
            .bind(&selection.key)
            .bind(selection.since.map(micros))
            .bind(selection.until.map(micros))
            .bind(ENTRIES_PER_CALL)
            .bind(serde_json::Value::from(message_ids).to_string());
        let mut connection = self.connect().await?;
        let mut found = rows.fetch(&mut connection);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut is_cut = false;
        while let Some(row) = found.try_next().await.map_err(failed())? {
            bytes += row.try_get::<Option<&[u8]>, _>("headers").map_err(failed())?.map_or(0, <[u8]>::len);
            is_cut = bytes > LABEL_BYTES_PER_CALL && !entries.is_empty();
            if is_cut {
                break;
            }
            entries.push(rows::selected(&Row::<Sqlite>::of(row)).map_err(failed())??);
        }
        Ok(SelectedPage::of(entries, range, is_cut))
    }

    async fn passed_between(
        &self,
        relay: &RelayName,
        before: &Extent,
        now: &Extent,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        // Ids ascend in the order of commits, and the cursor is one of them.
        let first = passed_to(before)?.max(after.0);
        let last = passed_to(now)?;
        let selection = Selection {
            first: Some(EntryId(first.saturating_add(1))),
            last: Some(EntryId(last)),
            ..Selection::default()
        };
        self.select(relay, now, &selection, EntryId(first)).await
    }

    async fn contents(&self, entries: &[(EntryId, Uuid)], limit: RowLimit) -> Result<Vec<Entry>, LogError> {
        let (payload_max, headers_max) = row_max(&limit);
        let ids: Vec<i64> = entries.iter().map(|(id, _)| id.0).collect();
        let message_ids: Vec<String> = entries.iter().map(|(_, id)| id.to_string()).collect();
        let rows = sqlx::query(&SQL.contents)
            .bind(serde_json::Value::from(ids).to_string())
            .bind(serde_json::Value::from(message_ids).to_string())
            .bind(payload_max)
            .bind(headers_max)
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("read entries"))?;
        let mut names = Names::default();
        rows.iter().map(|row| Ok(columns(row)?.into_entry(&mut names, &self.source, &limit))).collect()
    }

    async fn payload(
        &self,
        relay: &RelayName,
        id: EntryId,
        message_id: &str,
        bytes_max: u64,
    ) -> Result<Option<StoredPayload>, LogError> {
        self.tables.payload(&mut self.connect().await?, relay, id, message_id, bytes_max).await
    }

    async fn lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError> {
        let passed = passed_to(&self.extent(relay).await?)?;
        let rows = sqlx::query(&SQL.lag)
            .bind(relay.as_str())
            .bind(passed)
            .bind(UNREAD_COUNTED_MAX)
            .bind(COUNTED_MAX)
            .fetch_all(&mut self.connect().await?)
            .await
            .map_err(LogError::during("count the entries that have not left"))?;
        let groups = rows.into_iter().map(|row| rows::lagging(&Row::<Sqlite>::of(row)));
        let groups: Result<Vec<_>, sqlx::Error> = groups.collect();
        Ok(by_topic(groups.map_err(LogError::during("count the entries that have not left"))?))
    }

    async fn firsts(&self, moments: &[OffsetDateTime]) -> Result<Vec<Option<EntryId>>, LogError> {
        let mut connection = self.connect().await?;
        let mut found = Vec::with_capacity(moments.len());
        for at in moments {
            let first: Option<i64> = sqlx::query_scalar(FIRST)
                .bind(smallest_id(*at).hyphenated().to_string())
                .fetch_optional(&mut connection)
                .await
                .map_err(LogError::during("look for the first entries"))?;
            found.push(first.map(EntryId));
        }
        Ok(found)
    }

    async fn note_operation(
        &self,
        relay: &RelayName,
        action: &str,
        selection: &str,
        by: Signature<'_>,
    ) -> Result<(), LogError> {
        let done = Done { action, selection, by };
        let noted = self.tables.note(&mut self.connect().await?, relay, done).await;
        noted.map_err(LogError::during("note an operation"))
    }
}
