//! Single entries of the log, in SQLite.

mod statements;

use async_trait::async_trait;
use futures_util::{Stream, TryStreamExt as _};
use message::ERASED_CONTENT_TYPE;
use migrations::query::Row;
use outbox::Signature;
use outbox::sqlite::clock::micros;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection as _, Executor as _, Row as _, Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::entry::at_micros;
use crate::admin::status::COUNTED_MAX;
use crate::entries::erasure::{ERASED, decided};
use crate::entries::lag::by_topic;
use crate::entries::search::{SHARED, Span, ends_early, returned_max};
use crate::entries::selection::{ENTRIES_PER_CALL, LABEL_BYTES_PER_CALL, made_at, smallest_id};
use crate::entries::{
    EntryName, EntryRef, Erasure, Extent, FoundEntry, LogEntries, Search, Searched, SelectedEntry,
    SelectedPage, Selection, StoredPayload, TopicLag, UNREAD_COUNTED_MAX,
};
use crate::row::Names;
use crate::sqlite::reconcile::{passed, uuid};
use crate::sqlite::row::{columns, row_max};
use crate::sqlite::store::{FILE, SqliteLog};
use crate::{Entry, EntryId, LogError, RelayName, RowLimit, rows};
use statements::{FIRST, OVERWRITE, SQL};

/// Returns the statement that finds an entry.
#[cfg(test)]
pub(super) fn find_statement() -> &'static migrations::Statement {
    &SQL.find
}

/// Returns the statements of a search.
#[cfg(test)]
pub(super) fn search_statements() -> [&'static migrations::Statement; 2] {
    [&SQL.span, &SQL.search]
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
                missing_segments: None,
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
        let Found { entries, is_cut } = found(rows.fetch(&mut connection), failed).await?;
        Ok(SelectedPage::of(entries, range, is_cut))
    }

    async fn search(
        &self,
        relay: &RelayName,
        extent: &Extent,
        search: &Search,
        below: EntryId,
        wanted: u32,
    ) -> Result<Searched, LogError> {
        let failed = || LogError::during("search the log");
        let wanted = returned_max(wanted);
        let rows_max = search.rows_max(wanted);
        let mut connection = self.connect().await?;
        let Some(span) = span(&mut connection, below, i64::MIN, rows_max).await? else {
            return Ok(Searched::default());
        };
        let rows = sqlx::query(&SQL.search)
            .bind(relay.as_str())
            .bind(passed_to(extent)?)
            .bind(below.0)
            .bind(span.first.0)
            .bind(&search.topic)
            .bind(&search.key)
            .bind(search.header.as_ref().map(|header| &header.name))
            .bind(search.header.as_ref().map(|header| &header.value))
            .bind((wanted + SHARED) as i64);
        let Found { mut entries, is_cut } = found(rows.fetch(&mut connection), failed).await?;
        let Some(next) = ends_early(&mut entries, wanted, is_cut) else {
            return Ok(Searched {
                entries,
                looked_at: span.rows.unsigned_abs(),
                back_to: Some(span.back_to),
                below: (span.rows >= rows_max).then_some(span.first),
            });
        };
        let part = self::span(&mut connection, below, next.0, i64::MAX).await?;
        Ok(Searched {
            entries,
            looked_at: part.map_or(0, |part| part.rows.unsigned_abs()),
            back_to: part.map(|part| part.back_to),
            below: Some(next),
        })
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
                .map_err(LogError::during("find the first entries"))?;
            found.push(first.map(EntryId));
        }
        Ok(found)
    }

    async fn erase(&self, entries: &[EntryName], erasure: &Erasure) -> Result<u64, LogError> {
        erasure.check(entries)?;
        let failed = || LogError::during("erase messages");
        let ids = |names: &[EntryName]| {
            let ids: Vec<i64> = names.iter().map(|name| name.id.0).collect();
            serde_json::Value::from(ids).to_string()
        };
        let message_ids = |names: &[EntryName]| {
            let ids: Vec<String> = names.iter().map(|name| name.message_id.to_string()).collect();
            serde_json::Value::from(ids).to_string()
        };
        let mut connection = self.connect().await?;
        connection.execute(OVERWRITE).await.map_err(failed())?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let rows = sqlx::query(&SQL.erase).bind(ids(entries)).bind(message_ids(entries));
        let rows = rows.bind(ERASED_CONTENT_TYPE).fetch_all(&mut *tx).await.map_err(failed())?;
        let mut erased = Vec::with_capacity(rows.len());
        for row in &rows {
            let message_id: String = row.try_get("message_id").map_err(failed())?;
            let id = EntryId(row.try_get("id").map_err(failed())?);
            erased.push(EntryName { id, message_id: uuid(&message_id)? });
        }
        let copies = sqlx::query_scalar(&SQL.erase_copies).bind(ids(entries)).bind(message_ids(entries));
        let copies = copies.bind(ERASED_CONTENT_TYPE).fetch_all(&mut *tx).await.map_err(failed())?;
        let decided: Vec<String> =
            decided(entries, &erased, &copies).iter().map(|id| id.hyphenated().to_string()).collect();
        let decided = serde_json::Value::from(decided).to_string();
        let decisions = sqlx::query(&SQL.erase_decisions).bind(decided);
        decisions.execute(&mut *tx).await.map_err(failed())?;
        for name in &erased {
            sqlx::query(&SQL.note_erased)
                .bind(name.id.0)
                .bind(name.message_id.to_string())
                .bind(&erasure.signature.actor)
                .bind(&erasure.signature.note)
                .bind(ERASED)
                .bind(erasure.decision.to_string())
                .execute(&mut *tx)
                .await
                .map_err(failed())?;
        }
        tx.commit().await.map_err(failed())?;
        Ok(erased.len() as u64)
    }

    async fn identity(&self) -> Result<String, LogError> {
        let failed = LogError::during("identify the log");
        let file: String =
            sqlx::query_scalar(FILE).fetch_one(&mut self.connect().await?).await.map_err(failed)?;
        // Another path to the same file is resolved.
        let whole = std::fs::canonicalize(&file);
        let whole = whole.map_err(|error| LogError::operator(format!("cannot resolve {file}: {error}")))?;
        Ok(format!("sqlite {}", whole.display()))
    }

    async fn note_operation(&self, relay: &RelayName, action: &str, by: &Signature) -> Result<(), LogError> {
        let noted = self.tables.note(&mut self.connect().await?, relay, action, by).await;
        noted.map_err(LogError::during("record an operation"))
    }
}

/// The entries of a call, and whether some were cut off because their headers are too large.
struct Found {
    entries: Vec<SelectedEntry>,
    is_cut: bool,
}

async fn found<E: FnOnce(sqlx::Error) -> LogError>(
    mut rows: impl Stream<Item = Result<SqliteRow, sqlx::Error>> + Unpin,
    failed: impl Fn() -> E,
) -> Result<Found, LogError> {
    let mut bytes = 0;
    let mut entries = Vec::new();
    while let Some(row) = rows.try_next().await.map_err(failed())? {
        bytes += row.try_get::<Option<&[u8]>, _>("headers").map_err(failed())?.map_or(0, <[u8]>::len);
        if bytes > LABEL_BYTES_PER_CALL && !entries.is_empty() {
            return Ok(Found { entries, is_cut: true });
        }
        entries.push(rows::selected(&Row::<Sqlite>::of(row)).map_err(failed())??);
    }
    Ok(Found { entries, is_cut: false })
}

async fn span(
    connection: &mut SqliteConnection,
    below: EntryId,
    from: i64,
    rows: i64,
) -> Result<Option<Span>, LogError> {
    let failed = || LogError::during("search the log");
    let row = sqlx::query(&SQL.span)
        .bind(below.0)
        .bind(from)
        .bind(rows)
        .fetch_optional(connection)
        .await
        .map_err(failed())?;
    let span = |row: SqliteRow| -> Result<Span, sqlx::Error> {
        Ok(Span {
            rows: row.try_get("seen")?,
            first: EntryId(row.try_get("id")?),
            back_to: at_micros(row.try_get("enqueued_at")?),
        })
    };
    row.map(span).transpose().map_err(failed())
}
