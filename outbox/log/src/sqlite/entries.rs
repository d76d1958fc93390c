//! Single entries of the log, in SQLite.

use std::sync::LazyLock;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use outbox::sqlite::clock::{NOW, micros};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::entry::at_micros;
use crate::admin::status::COUNTED_MAX;
use crate::entries::lag::{LagRow, by_topic};
use crate::entries::selection::{ENTRIES_PER_CALL, LABEL_BYTES_PER_CALL, made_at, smallest_id};
use crate::entries::{
    EntryRef, Extent, FoundEntry, HeldBehind, Labels, LogEntries, ParkedState, SelectedEntry, SelectedPage,
    Selection, Standing, StoredPayload, TopicLag, UNREAD_COUNTED_MAX,
};
use crate::row::Names;
use crate::sqlite::operations;
use crate::sqlite::reader::{columns, optional_text, row_max, text};
use crate::sqlite::reconcile::{passed, uuid};
use crate::sqlite::statements::{DISCARDED, EDITED, TRACE};
use crate::sqlite::store::SqliteLog;
use crate::{Entry, EntryId, ExceptionState, LogError, RelayName, RowLimit};

const FIRST: &str = "SELECT id FROM outbox_message WHERE message_id >= ?1 ORDER BY message_id LIMIT 1";

migrations::statements! {
    parts {
        now = NOW;
        trace = TRACE;
        discarded = DISCARDED;
        edited = EDITED;
        // Null where they are longer than those of any message that a broker accepts.
        labels = "CASE WHEN octet_length(m.headers) > 4194304 THEN 'null' ELSE m.headers END";
    }

    extent = "
        SELECT {now} AS now, (SELECT cursor FROM outbox_relay WHERE relay = ?1 AND shard = 0) AS cursor,
            (SELECT checkpoint_at FROM outbox_relay WHERE relay = ?1 AND shard = 0) AS checkpoint_at,
            (SELECT expired_through FROM outbox_retention) AS expired_through,
            (SELECT min(id) FROM outbox_message) AS oldest_id,
            (SELECT enqueued_at FROM outbox_message ORDER BY id LIMIT 1) AS oldest_at,
            (SELECT max(id) FROM outbox_message) AS newest_id";
    /// ?1 relay, ?2 passed up to this id, ?3 id or null, ?4 message id or null. A parked entry has
    /// a copy of its content, which an operator may have edited. Decisions are read by the message,
    /// because its entry may have had another id.
    find(of = "n") = "
        WITH named AS (
                SELECT id, message_id FROM outbox_message
                WHERE (?3 IS NULL OR id = ?3) AND (?4 IS NULL OR message_id = ?4)
                UNION SELECT id, message_id FROM outbox_exception
                WHERE relay = ?1 AND shard = 0 AND (?3 IS NULL OR id = ?3) AND (?4 IS NULL OR message_id = ?4)),
        whole AS (
                SELECT n.id, n.message_id, coalesce(m.topic, e.topic) AS topic, coalesce(m.key, e.key) AS key,
                    coalesce(m.kind, p.kind, m.topic, e.topic) AS kind,
                    coalesce(m.content_type, p.content_type) AS content_type,
                    CASE WHEN coalesce(octet_length(p.headers), octet_length(m.headers)) > 4194304 THEN 'null'
                        ELSE coalesce(p.headers, m.headers) END AS headers,
                    CASE WHEN coalesce(octet_length(m.traceparent), octet_length(p.traceparent)) <= 64
                        THEN coalesce(m.traceparent, p.traceparent) END AS traceparent,
                    coalesce(octet_length(p.payload), octet_length(m.payload)) AS payload_bytes,
                    coalesce(m.enqueued_at, p.enqueued_at) AS enqueued_at, m.deliver_at, m.id IS NOT NULL AS is_in_log,
                    n.id <= ?2 AS passed, e.state, e.attempts, e.due_at, e.fault, e.error, e.created_at, e.updated_at,
                    p.edited_at IS NOT NULL AS edited,
                    {discarded} AS was_discarded, {edited} AS was_edited,
                    (SELECT a.error FROM outbox_audit AS a WHERE a.relay = ?1 AND a.message_id = n.message_id
                        AND a.action = 'discard' ORDER BY a.seq DESC LIMIT 1) AS discarded_error,
                    (SELECT o.id FROM outbox_exception AS o
                        WHERE o.relay = ?1 AND o.shard = 0 AND o.state IN ('retrying', 'dead') AND e.state = 'held'
                        AND (o.key = e.key AND o.id < e.id OR o.topic = e.topic AND o.state = 'retrying')
                        ORDER BY o.id LIMIT 1) AS behind_id
                FROM named AS n LEFT JOIN outbox_message AS m ON m.id = n.id AND m.message_id = n.message_id
                LEFT JOIN outbox_exception AS e
                    ON e.relay = ?1 AND e.shard = 0 AND e.id = n.id AND e.message_id = n.message_id
                LEFT JOIN outbox_parked AS p ON p.relay = e.relay AND p.shard = e.shard AND p.id = e.id)
        SELECT w.*, b.state AS behind_state, b.error AS behind_error FROM whole AS w
        LEFT JOIN outbox_exception AS b ON b.relay = ?1 AND b.shard = 0 AND b.id = w.behind_id ORDER BY w.id";
    /// ?1 relay, ?2 passed up to this id, ?3 above this id, ?4 up to this id, ?5 ids or null, ?6
    /// topic, ?7 key, ?8 and ?9 bounds of the time of enqueueing, ?10 rows, ?11 message ids of the
    /// ids.
    select(of = "m") = "
        SELECT m.id, m.message_id, m.topic, m.key, coalesce(m.kind, m.topic) AS kind, {labels} AS headers,
                octet_length(m.payload) AS payload_bytes, m.enqueued_at, e.state, m.id <= ?2 AS passed,
                {discarded} AS discarded, {edited} AS edited
        FROM outbox_message AS m
        LEFT JOIN outbox_exception AS e
            ON e.relay = ?1 AND e.shard = 0 AND e.id = m.id AND e.message_id = m.message_id
        WHERE m.id > ?3 AND m.id <= ?4 AND (?5 IS NULL OR m.id IN (SELECT value FROM json_each(?5))
                    AND m.message_id IN (SELECT value FROM json_each(?11)))
                AND (?6 IS NULL OR m.topic = ?6) AND (?7 IS NULL OR m.key = ?7)
                AND (?8 IS NULL OR m.enqueued_at >= ?8) AND (?9 IS NULL OR m.enqueued_at <= ?9)
        ORDER BY m.id LIMIT ?10";
    /// ?1 ids, ?2 message ids, ?3 maximum bytes of a payload and ?4 of headers to read.
    contents = "
        SELECT id, message_id, topic, key, kind, content_type,
            CASE WHEN octet_length(headers) <= ?4 THEN headers END AS headers,
            {trace},
            CASE WHEN octet_length(payload) <= ?3 THEN payload END AS payload,
            octet_length(payload) AS payload_bytes, coalesce(octet_length(headers), 0) AS headers_bytes, enqueued_at,
            (deliver_at - {now}) / 1e6 AS deliver_in FROM outbox_message WHERE id IN (SELECT value FROM json_each(?1))
            AND message_id IN (SELECT value FROM json_each(?2)) ORDER BY id";
    /// ?1 relay, ?2 id, ?3 message id, ?4 maximum bytes of a payload to read. A copy that an
    /// operator has edited comes before the row, and the row before any other copy.
    payload = "
        SELECT content_type, octet_length(payload) AS bytes,
            CASE WHEN octet_length(payload) <= ?4 THEN payload END AS payload FROM (
            SELECT 1 AS nth, content_type, payload FROM outbox_message WHERE id = ?2 AND message_id = ?3
            UNION ALL
            SELECT CASE WHEN p.edited_at IS NULL THEN 2 ELSE 0 END, p.content_type, p.payload
            FROM outbox_exception AS e JOIN outbox_parked AS p USING (relay, shard, id)
            WHERE e.relay = ?1 AND e.shard = 0 AND e.id = ?2 AND e.message_id = ?3)
        ORDER BY nth LIMIT 1";
    /// ?1 relay, ?2 passed up to this id, ?3 and ?4 maximum unread and parked entries to count.
    lag = "
        SELECT topic, NULL, 0, count(*), coalesce(max(({now} - enqueued_at) / 1e6), 0.0)
        FROM (SELECT topic, enqueued_at FROM outbox_message WHERE id > ?2 ORDER BY id LIMIT ?3) GROUP BY topic
        UNION ALL SELECT topic, state, is_due, count, ({now} - CASE WHEN is_due THEN due_at
            ELSE coalesce((SELECT enqueued_at FROM outbox_parked WHERE relay = ?1 AND shard = 0 AND id = counted.id),
                (SELECT enqueued_at FROM outbox_message WHERE id = counted.id), created_at) END) / 1e6
        FROM (SELECT topic, state, is_due, count(*) AS count, min(id) AS id, min(due_at) AS due_at,
                min(created_at) AS created_at
            FROM (SELECT topic, state, id, due_at, created_at, state = 'scheduled' AND due_at <= {now} AS is_due
                FROM outbox_exception WHERE relay = ?1 AND shard = 0 ORDER BY id LIMIT ?4)
            GROUP BY topic, state, is_due) AS counted";
}

/// Without a schema.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

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
        rows.iter().map(|row| found(row).map_err(failed())?).collect()
    }

    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError> {
        let failed = || LogError::during("find out how far the log reaches");
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
            .bind(range.0)
            .bind(range.1)
            .bind((!ids.is_empty()).then(|| serde_json::Value::from(ids).to_string()))
            .bind(&selection.topic)
            .bind(&selection.key)
            .bind(selection.since.map(micros))
            .bind(selection.until.map(micros))
            .bind(ENTRIES_PER_CALL)
            .bind(serde_json::Value::from(message_ids).to_string());
        let mut connection = self.connect().await?;
        let mut rows = rows.fetch(&mut connection);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut is_cut = false;
        while let Some(row) = rows.try_next().await.map_err(failed())? {
            bytes += row.try_get::<Option<&[u8]>, _>("headers").map_err(failed())?.map_or(0, <[u8]>::len);
            is_cut = bytes > LABEL_BYTES_PER_CALL && !entries.is_empty();
            if is_cut {
                break;
            }
            entries.push(selected(&row).map_err(failed())??);
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
        let failed = || LogError::during("read a payload");
        let found = sqlx::query(&SQL.payload)
            .bind(relay.as_str())
            .bind(id.0)
            .bind(message_id)
            .bind(i64::try_from(bytes_max).unwrap_or(i64::MAX))
            .fetch_optional(&mut self.connect().await?)
            .await
            .map_err(failed())?;
        found.as_ref().map(stored_payload).transpose().map_err(failed())
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
        let row = |row: &SqliteRow| {
            Ok((text(row, "topic")?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
        };
        let rows: Result<Vec<LagRow>, sqlx::Error> = rows.iter().map(row).collect();
        Ok(by_topic(rows.map_err(LogError::during("count the entries that have not left"))?))
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
        signature: (&str, &str),
    ) -> Result<(), LogError> {
        operations::note(&mut self.connect().await?, relay, action, selection, signature)
            .await
            .map_err(LogError::during("note an operation"))
    }
}

fn stored_payload(row: &SqliteRow) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        content_type: text(row, "content_type")?,
        bytes: u64::try_from(row.try_get::<i64, _>("bytes")?).unwrap_or_default(),
        payload: row.try_get("payload")?,
    })
}

/// Reads a found entry. The outer error is the client library's; the inner one concerns the
/// content.
fn found(row: &SqliteRow) -> Result<Result<FoundEntry, LogError>, sqlx::Error> {
    let time = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.map(at_micros));
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
                attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or_default(),
                due_at: time("due_at")?,
                fault: row.try_get("fault")?,
                error: row.try_get("error")?,
                since: at_micros(row.try_get("created_at")?),
                changed_at: at_micros(row.try_get("updated_at")?),
                is_edited: row.try_get("edited")?,
                behind,
            })
        }
    };
    let bytes: Option<i64> = row.try_get("payload_bytes")?;
    Ok(Ok(FoundEntry {
        id: EntryId(row.try_get("id")?),
        message_id: text(row, "message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get("headers")?),
        content_type: optional_text(row, "content_type")?,
        traceparent: optional_text(row, "traceparent")?,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        enqueued_at: time("enqueued_at")?,
        transaction: None,
        deliver_at: time("deliver_at")?,
        is_in_log: row.try_get("is_in_log")?,
        is_passed: row.try_get("passed")?,
        is_discarded: row.try_get("was_discarded")?,
        discarded_error: row.try_get("discarded_error")?,
        is_edited: row.try_get("was_edited")?,
        parked,
    }))
}

fn selected(row: &SqliteRow) -> Result<Result<SelectedEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.try_get("state")?;
    let state = match state.as_deref().map(ExceptionState::stored).transpose() {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    // A row without an id was never published. It is identified by its position.
    let message_id = uuid(&text(row, "message_id")?).unwrap_or_default();
    let (is_passed, is_discarded, is_edited) =
        (row.try_get("passed")?, row.try_get("discarded")?, row.try_get("edited")?);
    Ok(Ok(SelectedEntry {
        id: EntryId(row.try_get("id")?),
        message_id,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get("headers")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        enqueued_at: at_micros(row.try_get("enqueued_at")?),
        standing: Standing::of(is_passed, state, is_discarded, is_edited),
    }))
}
