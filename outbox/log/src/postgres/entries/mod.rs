//! Single entries of the log, in PostgreSQL.

pub(super) mod statements;

use std::collections::BTreeMap;

use async_trait::async_trait;
use message::ERASED_CONTENT_TYPE;
use migrations::query::Row;
use outbox::Signature;
use sqlx::postgres::{PgConnection, PgRow, Postgres};
use sqlx::types::Uuid;
use sqlx::{Connection as _, Executor as _, Row as _};
use time::OffsetDateTime;

use crate::admin::status::COUNTED_MAX;
use crate::entries::erasure::{ERASED, decided};
use crate::entries::lag::by_topic;
use crate::entries::search::{SHARED, Span, ends_early, returned_max};
use crate::entries::selection::{ENTRIES_PER_CALL, IdRange, made_at, smallest_id};
use crate::entries::{
    EntryName, EntryRef, Erasure, Extent, FoundEntry, LogEntries, Search, Searched, SelectedEntry,
    SelectedPage, Selection, StoredPayload, TopicLag, UNREAD_COUNTED_MAX,
};
use crate::operators::Operators as _;
use crate::postgres::admin::statements::PRESENT;
use crate::postgres::mark::{PgMark, array};
use crate::postgres::reconcile::Passed;
use crate::postgres::row;
use crate::postgres::store::{ONE_PLAN_HERE, PostgresLog};
use crate::row::Names;
use crate::{Entry, EntryId, LogError, RelayName, RowLimit, rows, stored};
use statements::{FIRSTS, IDENTITY, Statements};

impl PostgresLog {
    fn sql(&self) -> Statements {
        Statements::new(self.options.schema.as_ref())
    }

    async fn read_extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        let failed = || LogError::during("read the first and last position of the log");
        let mut connection = self.look().await?;
        let statement = self.sql().extent;
        let row = sqlx::query(&statement)
            .bind(relay.as_str())
            .fetch_one(&mut *connection)
            .await
            .map_err(failed())?;
        let cursor: Option<String> = row.try_get("cursor").map_err(failed())?;
        let mut is_of_this_server = true;
        if let Some(cursor) = &cursor
            && let Some(history) = PgMark::read(&stored::read(cursor)?.base)?.history
        {
            let (system, timeline): (String, i64) =
                sqlx::query_as(&self.render(PRESENT)).fetch_one(&mut *connection).await.map_err(failed())?;
            is_of_this_server = history.is_of(&system, timeline);
        }
        let extent = || -> Result<Extent, sqlx::Error> {
            let oldest = row.try_get::<Option<i64>, _>("oldest_id")?.map(EntryId);
            Ok(Extent {
                now: row.try_get("now")?,
                cursor,
                checkpoint_at: row.try_get("checkpoint_at")?,
                is_of_this_server,
                oldest: oldest.zip(row.try_get("oldest_at")?),
                newest: row.try_get::<Option<i64>, _>("newest_id")?.map(EntryId),
                expired_through: row.try_get::<Option<Uuid>, _>("expired_through")?.and_then(made_at),
                missing_segments: row.try_get("missing_segments")?,
            })
        };
        extent().map_err(failed())
    }

    async fn read_span(
        &self,
        connection: &mut PgConnection,
        below: EntryId,
        from: i64,
        rows: i64,
    ) -> Result<Option<Span>, LogError> {
        let failed = || LogError::during("search the log");
        let row = sqlx::query(&self.sql().span)
            .bind(below.0)
            .bind(from)
            .bind(rows)
            .fetch_optional(connection)
            .await
            .map_err(failed())?;
        let span = |row: PgRow| -> Result<Span, sqlx::Error> {
            Ok(Span {
                rows: row.try_get("seen")?,
                first: EntryId(row.try_get("id")?),
                back_to: row.try_get("enqueued_at")?,
            })
        };
        row.map(span).transpose().map_err(failed())
    }
}

#[async_trait]
impl LogEntries for PostgresLog {
    async fn find(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError> {
        let ask = async {
            let failed = || LogError::during("look up the entry");
            let cursor = self.read_extent(relay).await?.cursor;
            let passed = Passed::read(cursor.as_deref())?;
            let (id, message_id) = match which {
                EntryRef::Id(id) => (Some(id.0), None),
                EntryRef::MessageId(id) => (None, Some(id)),
            };
            let statement = self.sql().find;
            let rows = passed
                .query(&statement, relay)
                .bind(id)
                .bind(message_id)
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(failed())?;
            let found = |row| rows::found(&Row::<Postgres>::of(row)).map_err(failed())?;
            rows.into_iter().map(found).collect()
        };
        self.limited(ask).await
    }

    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        self.limited(self.read_extent(relay)).await
    }

    async fn select(
        &self,
        relay: &RelayName,
        extent: &Extent,
        selection: &Selection,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        let ask = async {
            let failed = || LogError::during("choose entries");
            let Some(range) = selection.range(extent, after) else { return Ok(SelectedPage::end(after)) };
            let passed = Passed::read(extent.cursor.as_deref())?;
            let (ids, message_ids): (Vec<i64>, Vec<Uuid>) =
                selection.named.iter().map(|name| (name.id.0, name.message_id)).unzip();
            let statement = self.sql().select;
            let rows = passed
                .query(&statement, relay)
                .bind(range.above)
                .bind(range.to)
                .bind((!ids.is_empty()).then_some(ids))
                .bind(&selection.topic)
                .bind(&selection.key)
                .bind(selection.since)
                .bind(selection.until)
                .bind(ENTRIES_PER_CALL)
                .bind(message_ids)
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(failed())?;
            page(rows, range, failed)
        };
        self.limited(ask).await
    }

    async fn search(
        &self,
        relay: &RelayName,
        extent: &Extent,
        search: &Search,
        below: EntryId,
        wanted: u32,
    ) -> Result<Searched, LogError> {
        let ask = async {
            let failed = || LogError::during("search the log");
            let wanted = returned_max(wanted);
            let rows_max = search.rows_max(wanted);
            let mut connection = self.look().await?;
            let Some(span) = self.read_span(&mut connection, below, i64::MIN, rows_max).await? else {
                return Ok(Searched::default());
            };
            let passed = Passed::read(extent.cursor.as_deref())?;
            let statement = self.sql().search;
            let rows = passed
                .query(&statement, relay)
                .bind(below.0)
                .bind(span.first.0)
                .bind(&search.topic)
                .bind(&search.key)
                .bind(search.header.as_ref().map(|header| &header.name))
                .bind(search.header.as_ref().map(|header| &header.value))
                .bind((wanted + SHARED) as i64)
                .fetch_all(&mut *connection)
                .await
                .map_err(failed())?;
            let Found { mut entries, is_cut } = found(rows, failed)?;
            let Some(next) = ends_early(&mut entries, wanted, is_cut) else {
                return Ok(Searched {
                    entries,
                    looked_at: span.rows.unsigned_abs(),
                    back_to: Some(span.back_to),
                    below: (span.rows >= rows_max).then_some(span.first),
                });
            };
            let part = self.read_span(&mut connection, below, next.0, i64::MAX).await?;
            Ok(Searched {
                entries,
                looked_at: part.map_or(0, |part| part.rows.unsigned_abs()),
                back_to: part.map(|part| part.back_to),
                below: Some(next),
            })
        };
        self.limited(ask).await
    }

    async fn passed_between(
        &self,
        relay: &RelayName,
        before: &Extent,
        now: &Extent,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        let ask = async {
            let failed = || LogError::during("follow the log");
            if before.cursor == now.cursor {
                return Ok(SelectedPage::end(after));
            }
            let (earlier, passed) =
                (Passed::read(before.cursor.as_deref())?, Passed::read(now.cursor.as_deref())?);
            let statement = self.sql().passed_between;
            let rows = passed
                .query(&statement, relay)
                .bind(&earlier.base.snapshot)
                .bind(earlier.base.floor)
                .bind(array(&earlier.in_flight))
                .bind(&earlier.head)
                .bind(earlier.after)
                .bind(after.0)
                .bind(ENTRIES_PER_CALL)
                .bind(earlier.settled)
                .bind(passed.ends_at(&earlier))
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(failed())?;
            page(rows, IdRange { above: after.0, to: i64::MAX, is_last: true }, failed)
        };
        self.limited(ask).await
    }

    async fn contents(&self, entries: &[(EntryId, Uuid)], limit: RowLimit) -> Result<Vec<Entry>, LogError> {
        let ask = async {
            let (ids, message_ids): (Vec<i64>, Vec<Uuid>) =
                entries.iter().map(|(id, uuid)| (id.0, *uuid)).unzip();
            let statement = self.sql().contents;
            let rows = sqlx::query(&statement)
                .bind(ids)
                .bind(message_ids)
                .bind(i64::try_from(limit.payload.message_bytes_max).unwrap_or(i64::MAX))
                .bind(i64::try_from(limit.headers_bytes_max()).unwrap_or(i64::MAX))
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("read entries"))?;
            let mut names = Names::default();
            rows.iter()
                .map(|row| Ok(row::read(row, None)?.into_entry(&mut names, &self.source, &limit)))
                .collect()
        };
        self.limited(ask).await
    }

    async fn payload(
        &self,
        relay: &RelayName,
        id: EntryId,
        message_id: &str,
        bytes_max: u64,
    ) -> Result<Option<StoredPayload>, LogError> {
        let ask =
            async { self.tables.payload(&mut *self.look().await?, relay, id, message_id, bytes_max).await };
        self.limited(ask).await
    }

    async fn lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError> {
        let ask = async {
            let cursor = self.read_extent(relay).await?.cursor;
            let passed = Passed::read(cursor.as_deref())?;
            let statement = self.sql().lag;
            let rows = passed
                .query(&statement, relay)
                .bind(array(&passed.in_flight))
                .bind(i64::from(UNREAD_COUNTED_MAX))
                .bind(i64::from(COUNTED_MAX))
                .bind(passed.settled)
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("count the entries that have not left"))?;
            let groups = rows.into_iter().map(|row| rows::lagging(&Row::<Postgres>::of(row)));
            let groups: Result<Vec<_>, sqlx::Error> = groups.collect();
            Ok(by_topic(groups.map_err(LogError::during("count the entries that have not left"))?))
        };
        self.limited(ask).await
    }

    async fn firsts(&self, moments: &[OffsetDateTime]) -> Result<Vec<Option<EntryId>>, LogError> {
        let ids: Vec<Uuid> = moments.iter().map(|at| smallest_id(*at)).collect();
        let ask = async {
            let found: Vec<Option<i64>> = sqlx::query_scalar(&self.render(FIRSTS))
                .bind(ids)
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("find the first entries"))?;
            Ok(found.into_iter().map(|id| id.map(EntryId)).collect())
        };
        self.limited(ask).await
    }

    async fn erase(&self, entries: &[EntryName], erasure: &Erasure) -> Result<u64, LogError> {
        erasure.check(entries)?;
        let ask = async {
            let failed = || LogError::during("erase messages");
            let statements = self.sql();
            let mut connection = self.session().await?;
            let mut tx = connection.begin().await.map_err(failed())?;
            tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
            let name = |row: &PgRow| -> Result<EntryName, sqlx::Error> {
                Ok(EntryName { id: EntryId(row.try_get("id")?), message_id: row.try_get("message_id")? })
            };
            let mut erased = Vec::with_capacity(entries.len());
            for (segment, entries) in by_segment(entries) {
                let (ids, message_ids) = columns(&entries);
                let query = sqlx::query(&statements.erase).bind(ids).bind(message_ids);
                let query = query.bind(ERASED_CONTENT_TYPE).bind(segment);
                for row in query.fetch_all(&mut *tx).await.map_err(failed())? {
                    erased.push(name(&row).map_err(failed())?);
                }
            }
            let (ids, message_ids) = columns(entries);
            let copies = sqlx::query_scalar(&statements.erase_copies).bind(ids).bind(message_ids);
            let copies = copies.bind(ERASED_CONTENT_TYPE).fetch_all(&mut *tx).await.map_err(failed())?;
            let decided = decided(entries, &erased, &copies);
            let decisions = sqlx::query(&statements.erase_decisions).bind(decided);
            decisions.execute(&mut *tx).await.map_err(failed())?;
            let (ids, message_ids) = columns(&erased);
            sqlx::query(&statements.note_erased)
                .bind(ids)
                .bind(message_ids)
                .bind(&erasure.signature.actor)
                .bind(&erasure.signature.note)
                .bind(ERASED)
                .bind(erasure.decision)
                .execute(&mut *tx)
                .await
                .map_err(failed())?;
            tx.commit().await.map_err(failed())?;
            Ok(erased.len() as u64)
        };
        self.limited(ask).await
    }

    async fn identity(&self) -> Result<String, LogError> {
        let ask = async {
            let mut connection = self.look().await?;
            let statement = self.render(IDENTITY);
            let identity = sqlx::query_scalar(&statement).fetch_one(&mut *connection).await;
            identity.map_err(LogError::during("identify the log"))
        };
        self.limited(ask).await
    }

    async fn note_operation(&self, relay: &RelayName, action: &str, by: &Signature) -> Result<(), LogError> {
        let noted = async {
            let noted = self.tables.note(&mut *self.session().await?, relay, action, by).await;
            noted.map_err(LogError::during("record an operation"))
        };
        self.limited(noted).await
    }
}

/// Divides entries by the segments in which their rows lie.
fn by_segment(entries: &[EntryName]) -> BTreeMap<i32, Vec<EntryName>> {
    let mut segments: BTreeMap<i32, Vec<EntryName>> = BTreeMap::new();
    for entry in entries {
        let segment = (entry.message_id.as_bytes()[2] >> 2) & 7;
        segments.entry(segment.into()).or_default().push(*entry);
    }
    segments
}

/// Returns ids and message ids as a statement takes them.
fn columns(entries: &[EntryName]) -> (Vec<i64>, Vec<Uuid>) {
    entries.iter().map(|name| (name.id.0, name.message_id)).unzip()
}

/// The entries of a call, and whether some were cut off.
struct Found {
    entries: Vec<SelectedEntry>,
    is_cut: bool,
}

/// Returns the entries of a call. The column `found` is the number before some were cut off.
fn found<E: FnOnce(sqlx::Error) -> LogError>(
    rows: Vec<PgRow>,
    failed: impl Fn() -> E,
) -> Result<Found, LogError> {
    let found: i64 = match rows.first() {
        Some(row) => row.try_get("found").map_err(failed())?,
        None => 0,
    };
    let is_cut = found > rows.len() as i64;
    let selected = |row| rows::selected(&Row::<Postgres>::of(row)).map_err(failed())?;
    let entries: Result<Vec<_>, LogError> = rows.into_iter().map(selected).collect();
    Ok(Found { entries: entries?, is_cut })
}

fn page<E: FnOnce(sqlx::Error) -> LogError>(
    rows: Vec<PgRow>,
    range: IdRange,
    failed: impl Fn() -> E,
) -> Result<SelectedPage, LogError> {
    let Found { entries, is_cut } = found(rows, failed)?;
    Ok(SelectedPage::of(entries, range, is_cut))
}
