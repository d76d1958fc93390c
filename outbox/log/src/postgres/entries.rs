//! Single entries of the log, in PostgreSQL.

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::types::Uuid;
use time::OffsetDateTime;

use crate::admin::status::COUNTED_MAX;
use crate::entries::lag::{LagRow, by_topic};
use crate::entries::selection::{ENTRIES_PER_CALL, made_at, smallest_id};
use crate::entries::{
    EntryRef, Extent, FoundEntry, HeldBehind, Labels, LogEntries, ParkedState, SelectedEntry, SelectedPage,
    Selection, Standing, StoredPayload, TopicLag, UNREAD_COUNTED_MAX,
};
use crate::failure::within;
use crate::postgres::admin::PRESENT;
use crate::postgres::mark::{PgMark, array};
use crate::postgres::reconcile::Passed;
use crate::postgres::row::{self, optional_text, text};
use crate::postgres::statements::{
    BOUNDED, COLUMNS, DISCARDED, EDITED, HEADERS, HEADERS_BYTES, PASSED, SAME_SEGMENT, TRACE, UNBOUNDED,
};
use crate::postgres::store::PostgresLog;
use crate::row::Names;
use crate::{Entry, EntryId, ExceptionState, LogError, RelayName, RowLimit, stored};

// One index lookup for each of the ids $1.
pub(super) const FIRSTS: &str = "
SELECT (SELECT m.id FROM {schema}outbox_message AS m WHERE m.message_id >= moment.floor
    ORDER BY m.message_id LIMIT 1)
FROM unnest($1::uuid[]) WITH ORDINALITY AS moment(floor, number) ORDER BY moment.number";

migrations::statements! {
    parts {
        // The columns of an entry that are shown, and its position.
        shown = "m.id, m.message_id, m.topic, m.key, m.kind, m.headers, octet_length(m.payload)::bigint AS payload_bytes,
            m.enqueued_at, m.xid";
        // The `chosen` entries with their exceptions and decisions. $1 is the relay, $2 to $5 the
        // cursor. Entries are chosen first, and each is then looked up separately: as a join, 100
        // entries and 50,000 exceptions took 5,000,000 comparisons.
        selected = "
            SELECT m.id, m.message_id, m.topic, m.key, coalesce(m.kind, m.topic) AS kind, {labels} AS headers,
                m.payload_bytes, m.enqueued_at, e.state, {passed} AS passed,
                {discarded} AS discarded, {edited} AS edited
            FROM ({chosen}) AS m
            LEFT JOIN LATERAL (SELECT state FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = m.id AND message_id = m.message_id LIMIT 1) AS e ON true
            ORDER BY m.id";
        // Ends a call early where the headers are too large, but after the first entry, and never
        // between two rows of one id: both windows count rows of one id as one place.
        cut = "SELECT * FROM (
                SELECT run.*, count(*) OVER () AS found, rank() OVER place AS nth,
                    sum(coalesce(octet_length(run.headers), 0)) OVER place AS bytes
                FROM ({selected}) AS run WINDOW place AS (ORDER BY run.id)) AS cut
            WHERE nth = 1 OR bytes <= 8388608 ORDER BY id";
        passed = PASSED;
        discarded = DISCARDED;
        edited = EDITED;
        labels = LABELS;
        columns = COLUMNS;
        headers = HEADERS;
        unbounded = UNBOUNDED;
        trace = TRACE;
        bounded = BOUNDED;
        headers_bytes = HEADERS_BYTES;
        same_segment = SAME_SEGMENT;
    }

    extent = "
        SELECT clock_timestamp() AS now, r.cursor, r.checkpoint_at, t.expired_through, oldest.id AS oldest_id,
            oldest.enqueued_at AS oldest_at, newest.id AS newest_id
        FROM (SELECT) AS always
        LEFT JOIN {schema}outbox_relay AS r ON r.relay = $1 AND r.shard = 0
        LEFT JOIN {schema}outbox_retention AS t ON true
        LEFT JOIN LATERAL (SELECT id, enqueued_at FROM {schema}outbox_message ORDER BY id LIMIT 1) AS oldest ON true
        LEFT JOIN LATERAL (SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1) AS newest ON true";
    /// $1 relay, $2 to $5 the cursor, $6 id or null, $7 message id or null. A parked entry has a
    /// copy of its content, which an operator may have edited. A message id is searched among all
    /// parked entries; each row that is found is then looked up separately. An id can exist once in
    /// each of the eight segments. Decisions are read by the message, because its entry may have
    /// had another id, and in the order of their index: PostgreSQL 18 reads the whole audit for an
    /// EXISTS when it believes it to be empty.
    find(of = "c", message_id = "n.message_id") = "
        WITH named AS MATERIALIZED (
            (SELECT id, message_id FROM {schema}outbox_message WHERE id >= $6 AND id <= $6 ORDER BY id LIMIT 8)
            UNION
            (SELECT id, message_id FROM {schema}outbox_message WHERE message_id >= $7 AND message_id <= $7
                ORDER BY message_id OFFSET 0)
            UNION
            SELECT id, message_id FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 AND id = $6
            UNION
            SELECT id, message_id FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND $7::uuid IS NOT NULL AND message_id = $7)
        SELECT n.id, n.message_id::text AS message_id, coalesce(m.topic, e.topic) AS topic, coalesce(m.key, e.key) AS key,
            coalesce(m.kind, p.kind, m.topic, e.topic) AS kind, coalesce(m.content_type, p.content_type) AS content_type,
            {labels} AS headers, left(coalesce(m.traceparent, p.traceparent), 64) AS traceparent,
            octet_length(coalesce(p.payload, m.payload))::bigint AS payload_bytes,
            coalesce(m.enqueued_at, p.enqueued_at) AS enqueued_at, m.xid::text AS transaction, m.deliver_at,
            m.id IS NOT NULL AS is_in_log, coalesce({passed}, false) AS passed,
            e.state, e.attempts, e.due_at, e.fault, e.error, e.created_at, e.updated_at, p.edited_at IS NOT NULL AS edited,
            {discarded} AS was_discarded, {edited} AS was_edited,
            (SELECT a.error FROM {schema}outbox_audit AS a
                WHERE a.relay = $1 AND a.message_id >= n.message_id AND a.message_id <= n.message_id
                    AND a.action = 'discard'
                ORDER BY a.message_id DESC, a.seq DESC LIMIT 1) AS discarded_error,
            b.id AS behind_id, b.state AS behind_state, b.error AS behind_error
        FROM named AS n
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_message
            WHERE id >= n.id AND id <= n.id AND message_id = n.message_id AND {same_segment}
            ORDER BY id LIMIT 1) AS m ON true
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_exception
            WHERE relay = $1 AND shard = 0 AND id = n.id AND message_id = n.message_id LIMIT 1) AS e ON true
        LEFT JOIN LATERAL (SELECT * FROM {schema}outbox_parked
            WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p ON true
        CROSS JOIN LATERAL (SELECT n.message_id, coalesce(p.headers, m.headers) AS headers) AS c
        LEFT JOIN LATERAL (
            SELECT o.id, o.state, o.error FROM {schema}outbox_exception AS o
            WHERE o.relay = $1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                AND (o.key = e.key AND o.id < e.id OR o.topic = e.topic AND o.state = 'retrying')
            ORDER BY o.id LIMIT 1) AS b ON true
        ORDER BY n.id";
    /// $6 above this id, $7 up to this id, $8 ids or null, $9 topic, $10 key, $11 and $12 bounds of
    /// the time of enqueueing, $13 rows, $14 message ids of the ids.
    select(
        of = "m",
        message_id = "asked.message_id",
        wanted = "m.id > $6 AND m.id <= $7
            AND ($9::text IS NULL OR m.topic = $9) AND ($10::text IS NULL OR m.key = $10)
            AND ($11::timestamptz IS NULL OR m.enqueued_at >= $11)
            AND ($12::timestamptz IS NULL OR m.enqueued_at <= $12)",
        chosen = "
            (SELECT {shown} FROM {schema}outbox_message AS m WHERE $8::bigint[] IS NULL AND {wanted}
            ORDER BY m.id LIMIT $13::bigint)
            UNION ALL
            SELECT named.* FROM (
                SELECT DISTINCT id, message_id FROM unnest($8::bigint[], $14::uuid[]) AS names(id, message_id)) AS asked
            CROSS JOIN LATERAL (SELECT {shown} FROM {schema}outbox_message AS m
                WHERE m.id >= asked.id AND m.id <= asked.id AND m.message_id = asked.message_id AND {same_segment}
                    AND {wanted}
                ORDER BY m.id LIMIT 1) AS named
            ORDER BY id LIMIT $13::bigint",
    ) = "{cut}";
    /// $6 to $10 an earlier cursor, with the transactions in flight at its marks as $8, $11 above
    /// this id, $12 rows, $13 the id up to which the earlier cursor had settled everything. Entries
    /// that it had not passed lie above that, or belong to a transaction that was in flight.
    passed_between(
        of = "m",
        since = "{passed}
            AND NOT (coalesce(pg_visible_in_snapshot(m.xid, (SELECT $6::text::pg_snapshot)), false)
                OR (m.id <= $7 AND (SELECT pg_snapshot_xmax($6::text::pg_snapshot) <= '1'))
                OR (m.id <= $10 AND coalesce(pg_visible_in_snapshot(m.xid, (SELECT $9::text::pg_snapshot)), false)))",
        chosen = "
            (SELECT {shown} FROM {schema}outbox_message AS m WHERE m.id > greatest($13::bigint, $11::bigint) AND {since}
            ORDER BY m.id LIMIT $12::bigint)
            UNION ALL
            SELECT late.* FROM unnest($8::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                SELECT {shown} FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (flight.xid, $11::bigint) AND (m.xid, m.id) <= (flight.xid, $13) AND {since}
                ORDER BY m.xid, m.id LIMIT $12::bigint) AS late
            ORDER BY id LIMIT $12::bigint",
    ) = "{cut}";
    /// $1 ids, $2 their message ids, $3 maximum bytes of a payload and $4 of headers to read.
    contents(
        of = "m",
        message_id = "wanted.message_id",
        is_short = "(octet_length(run.payload) <= $3::bigint AND {headers_bytes} <= $4::bigint)",
    ) = "
        SELECT {bounded} FROM (
            SELECT {columns} FROM unnest($1::bigint[], $2::uuid[]) AS wanted(id, message_id)
            CROSS JOIN LATERAL (SELECT * FROM {schema}outbox_message
                WHERE id >= wanted.id AND id <= wanted.id AND message_id = wanted.message_id AND {same_segment}
                ORDER BY id LIMIT 1) AS m
            OFFSET 0) AS run
        ORDER BY run.id";
    /// $1 relay, $2 id, $3 message id, $4 maximum bytes of a payload to read. A copy that an
    /// operator has edited comes before the row, and the row before any other copy.
    payload(message_id = "$3::text::uuid") = "
        SELECT content_type, octet_length(payload)::bigint, CASE WHEN octet_length(payload) <= $4 THEN payload END
        FROM (
            (SELECT 1 AS nth, content_type, payload FROM {schema}outbox_message
            WHERE id >= $2 AND id <= $2 AND message_id = $3::text::uuid AND {same_segment} ORDER BY id LIMIT 1)
            UNION ALL
            SELECT CASE WHEN p.edited_at IS NULL THEN 2 ELSE 0 END, p.content_type, p.payload
            FROM (SELECT id FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = $2 AND message_id = $3::text::uuid LIMIT 1) AS e
            CROSS JOIN LATERAL (SELECT content_type, payload, edited_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = e.id LIMIT 1) AS p) AS stored
        ORDER BY nth LIMIT 1";
    /// $1 relay, $2 to $5 the cursor, $6 transactions in flight at its marks, $7 and $8 maximum
    /// unread and parked entries to count, $9 the id up to which everything is settled. Entries
    /// that are not passed lie above it, or belong to a transaction that was in flight.
    lag = "
        SELECT topic, NULL::text, false, count(*), coalesce(max(extract(epoch FROM clock_timestamp() - enqueued_at)), 0)::float8
        FROM (
            (SELECT late.topic, late.enqueued_at FROM unnest($6::text::xid8[]) AS flight(xid) CROSS JOIN LATERAL (
                SELECT m.topic, m.enqueued_at FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, $9) AND NOT {passed}
                ORDER BY m.xid, m.id LIMIT $7::bigint) AS late)
            UNION ALL
            (SELECT m.topic, m.enqueued_at FROM {schema}outbox_message AS m WHERE m.id > $9::bigint AND NOT {passed}
            ORDER BY m.id LIMIT $7::bigint)
            LIMIT $7::bigint) AS unread
        GROUP BY topic
        UNION ALL
        SELECT topic, state, is_due, count, extract(epoch FROM clock_timestamp() - CASE WHEN is_due THEN due_at
            ELSE coalesce((SELECT enqueued_at FROM {schema}outbox_parked
                WHERE relay = $1 AND shard = 0 AND id = counted.id LIMIT 1), created_at) END)::float8
        FROM (
            SELECT topic, state, is_due, count(*) AS count, min(id) AS id, min(due_at) AS due_at,
                min(created_at) AS created_at
            FROM (SELECT topic, state, id, due_at, created_at, state = 'scheduled' AND due_at <= clock_timestamp() AS is_due
                FROM {schema}outbox_exception WHERE relay = $1 AND shard = 0 ORDER BY id LIMIT $8) AS parked
            GROUP BY topic, state, is_due) AS counted";
}

/// The headers of `of` for an operator's question; null where they are longer than those of any
/// message that a broker accepts.
pub(super) const LABELS: &str =
    "CASE WHEN {unbounded} OR octet_length({of}.headers::text) > 4194304 THEN 'null'
    ELSE {of}.headers::text END";

impl PostgresLog {
    fn sql(&self) -> Statements {
        Statements::new(self.options.schema.as_ref())
    }

    async fn read_lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError> {
        let cursor = self.read_extent(relay).await?.cursor;
        let passed = Passed::read(cursor.as_deref())?;
        let statement = self.sql().lag;
        let rows = sqlx::query(&statement)
            .bind(relay.as_str())
            .bind(&passed.base.snapshot)
            .bind(passed.base.floor)
            .bind(&passed.head)
            .bind(passed.after)
            .bind(array(&passed.in_flight))
            .bind(i64::from(UNREAD_COUNTED_MAX))
            .bind(i64::from(COUNTED_MAX))
            .bind(passed.settled)
            .fetch_all(&mut *self.look().await?)
            .await
            .map_err(LogError::during("count the entries that have not left"))?;
        let row = |row: &PgRow| {
            Ok((text(row, 0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
        };
        let rows: Result<Vec<LagRow>, sqlx::Error> = rows.iter().map(row).collect();
        Ok(by_topic(rows.map_err(LogError::during("count the entries that have not left"))?))
    }

    async fn read_extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        let failed = || LogError::during("find out how far the log reaches");
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
            })
        };
        extent().map_err(failed())
    }

    async fn read_found(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError> {
        let failed = || LogError::during("look up the entry");
        let cursor = self.read_extent(relay).await?.cursor;
        let passed = Passed::read(cursor.as_deref())?;
        let (id, message_id) = match which {
            EntryRef::Id(id) => (Some(id.0), None),
            EntryRef::MessageId(id) => (None, Some(id)),
        };
        let statement = self.sql().find;
        let rows = sqlx::query(&statement)
            .bind(relay.as_str())
            .bind(&passed.base.snapshot)
            .bind(passed.base.floor)
            .bind(&passed.head)
            .bind(passed.after)
            .bind(id)
            .bind(message_id)
            .fetch_all(&mut *self.look().await?)
            .await
            .map_err(failed())?;
        rows.iter().map(|row| found(row).map_err(failed())?).collect()
    }

    async fn read_selected(
        &self,
        relay: &RelayName,
        extent: &Extent,
        selection: &Selection,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        let failed = || LogError::during("choose entries");
        let Some(range) = selection.range(extent, after) else { return Ok(SelectedPage::end(after)) };
        let passed = Passed::read(extent.cursor.as_deref())?;
        let (ids, message_ids): (Vec<i64>, Vec<Uuid>) =
            selection.named.iter().map(|name| (name.id.0, name.message_id)).unzip();
        let statement = self.sql().select;
        let rows = sqlx::query(&statement)
            .bind(relay.as_str())
            .bind(&passed.base.snapshot)
            .bind(passed.base.floor)
            .bind(&passed.head)
            .bind(passed.after)
            .bind(range.0)
            .bind(range.1)
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
        page(&rows, range, failed)
    }

    async fn read_passed_between(
        &self,
        relay: &RelayName,
        (before, now): (&Extent, &Extent),
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        let failed = || LogError::during("follow the log");
        let (earlier, passed) =
            (Passed::read(before.cursor.as_deref())?, Passed::read(now.cursor.as_deref())?);
        let statement = self.sql().passed_between;
        let rows = sqlx::query(&statement)
            .bind(relay.as_str())
            .bind(&passed.base.snapshot)
            .bind(passed.base.floor)
            .bind(&passed.head)
            .bind(passed.after)
            .bind(&earlier.base.snapshot)
            .bind(earlier.base.floor)
            .bind(array(&earlier.in_flight))
            .bind(&earlier.head)
            .bind(earlier.after)
            .bind(after.0)
            .bind(ENTRIES_PER_CALL)
            .bind(earlier.settled)
            .fetch_all(&mut *self.look().await?)
            .await
            .map_err(failed())?;
        page(&rows, (after.0, i64::MAX, true), failed)
    }

    async fn read_contents(
        &self,
        entries: &[(EntryId, Uuid)],
        limit: RowLimit,
    ) -> Result<Vec<Entry>, LogError> {
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
    }
}

#[async_trait]
impl LogEntries for PostgresLog {
    async fn find(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError> {
        within(self.options.call_timeout, self.read_found(relay, which)).await
    }

    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        within(self.options.call_timeout, self.read_extent(relay)).await
    }

    async fn select(
        &self,
        relay: &RelayName,
        extent: &Extent,
        selection: &Selection,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        within(self.options.call_timeout, self.read_selected(relay, extent, selection, after)).await
    }

    async fn passed_between(
        &self,
        relay: &RelayName,
        before: &Extent,
        now: &Extent,
        after: EntryId,
    ) -> Result<SelectedPage, LogError> {
        within(self.options.call_timeout, self.read_passed_between(relay, (before, now), after)).await
    }

    async fn contents(&self, entries: &[(EntryId, Uuid)], limit: RowLimit) -> Result<Vec<Entry>, LogError> {
        within(self.options.call_timeout, self.read_contents(entries, limit)).await
    }

    async fn payload(
        &self,
        relay: &RelayName,
        id: EntryId,
        message_id: &str,
        bytes_max: u64,
    ) -> Result<Option<StoredPayload>, LogError> {
        let read = async {
            let statement = self.sql().payload;
            let found = sqlx::query(&statement)
                .bind(relay.as_str())
                .bind(id.0)
                .bind(message_id)
                .bind(i64::try_from(bytes_max).unwrap_or(i64::MAX))
                .fetch_optional(&mut *self.look().await?)
                .await
                .map_err(LogError::during("read a payload"))?;
            found.as_ref().map(stored_payload).transpose().map_err(LogError::during("read a payload"))
        };
        within(self.options.call_timeout, read).await
    }

    async fn lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError> {
        within(self.options.call_timeout, self.read_lag(relay)).await
    }

    async fn firsts(&self, moments: &[OffsetDateTime]) -> Result<Vec<Option<EntryId>>, LogError> {
        let ids: Vec<Uuid> = moments.iter().map(|at| smallest_id(*at)).collect();
        let ask = async {
            let found: Vec<Option<i64>> = sqlx::query_scalar(&self.render(FIRSTS))
                .bind(ids)
                .fetch_all(&mut *self.look().await?)
                .await
                .map_err(LogError::during("look for the first entries"))?;
            Ok(found.into_iter().map(|id| id.map(EntryId)).collect())
        };
        within(self.options.call_timeout, ask).await
    }

    async fn note_operation(
        &self,
        relay: &RelayName,
        action: &str,
        selection: &str,
        signature: (&str, &str),
    ) -> Result<(), LogError> {
        let noted = async {
            self.note(&mut *self.admin().await?, relay, action, selection, signature)
                .await
                .map_err(LogError::during("note an operation"))
        };
        within(self.options.call_timeout, noted).await
    }
}

/// Reads a found entry. The outer error is the client library's; the inner one concerns the
/// content.
fn found(row: &PgRow) -> Result<Result<FoundEntry, LogError>, sqlx::Error> {
    let bytes: Option<i64> = row.try_get("payload_bytes")?;
    let state: Option<String> = row.try_get("state")?;
    let parked = match state.as_deref().map(ExceptionState::stored) {
        None => None,
        Some(Err(error)) => return Ok(Err(error)),
        Some(Ok(state)) => {
            let behind: Option<i64> = row.try_get("behind_id")?;
            let behind = match behind {
                None => None,
                Some(id) => Some(HeldBehind {
                    id: EntryId(id),
                    state: row.try_get("behind_state")?,
                    error: row.try_get("behind_error")?,
                }),
            };
            Some(ParkedState {
                state,
                attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
                due_at: row.try_get("due_at")?,
                fault: row.try_get("fault")?,
                error: row.try_get("error")?,
                since: row.try_get("created_at")?,
                changed_at: row.try_get("updated_at")?,
                is_edited: row.try_get("edited")?,
                behind,
            })
        }
    };
    Ok(Ok(FoundEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get_unchecked("headers")?),
        content_type: optional_text(row, "content_type")?,
        traceparent: optional_text(row, "traceparent")?,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        enqueued_at: row.try_get("enqueued_at")?,
        transaction: row.try_get("transaction")?,
        deliver_at: row.try_get("deliver_at")?,
        is_in_log: row.try_get("is_in_log")?,
        is_passed: row.try_get("passed")?,
        is_discarded: row.try_get("was_discarded")?,
        discarded_error: row.try_get("discarded_error")?,
        is_edited: row.try_get("was_edited")?,
        parked,
    }))
}

fn stored_payload(row: &PgRow) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        content_type: text(row, 0)?,
        bytes: u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default(),
        payload: row.try_get(2)?,
    })
}

/// Returns the entries of a call. `found` is the number before some were cut off.
fn page<E: FnOnce(sqlx::Error) -> LogError>(
    rows: &[PgRow],
    range: (i64, i64, bool),
    failed: impl Fn() -> E,
) -> Result<SelectedPage, LogError> {
    let found: i64 = match rows.first() {
        Some(row) => row.try_get("found").map_err(failed())?,
        None => 0,
    };
    let entries: Result<Vec<_>, LogError> = rows.iter().map(|row| selected(row).map_err(failed())?).collect();
    let is_cut = found > rows.len() as i64;
    Ok(SelectedPage::of(entries?, range, is_cut))
}

fn selected(row: &PgRow) -> Result<Result<SelectedEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.try_get("state")?;
    let state = match state.as_deref().map(ExceptionState::stored).transpose() {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    let (is_passed, is_discarded, is_edited) =
        (row.try_get("passed")?, row.try_get("discarded")?, row.try_get("edited")?);
    let enqueued_at: OffsetDateTime = row.try_get("enqueued_at")?;
    Ok(Ok(SelectedEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get_unchecked("headers")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        enqueued_at,
        standing: Standing::of(is_passed, state, is_discarded, is_edited),
    }))
}
