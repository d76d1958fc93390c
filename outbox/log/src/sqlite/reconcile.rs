//! Rows in the order of message ids, in SQLite.

use std::sync::LazyLock;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use message::Fingerprint;
use migrations::{Line, Migrator};
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::entries::Labels;
use crate::entries::selection::LABEL_BYTES_PER_CALL;
use crate::reconcile::rows::{HASHED_BYTES_PER_CALL, Row, Rows, stage};
use crate::sqlite::fragments::{DISCARDED, WAS_EDITED};
use crate::sqlite::mark::id_of;
use crate::sqlite::row::text;
use crate::{LogError, RelayName, stored};

migrations::statements! {
    parts {
        // ?1 relay, ?2 the id up to which the cursor has passed.
        // A large payload of a parked entry was not published. Neither was one above 64 MiB, which
        // no broker accepts even in chunks. Neither is read.
        rows = "SELECT m.message_id, m.topic, coalesce(m.kind, m.topic) AS kind,
                CASE WHEN octet_length(m.headers) > 4194304 THEN 'null' ELSE m.headers END AS headers, m.content_type,
                CASE WHEN octet_length(m.payload) > 67108864
                        OR (e.state IN ('dead', 'held') AND octet_length(m.payload) > 1048576) THEN x''
                    ELSE m.payload END AS payload, e.state,
                m.id <= ?2 AS passed,
                {edited} AS edited, {discarded} AS discarded
            FROM outbox_message AS m LEFT JOIN outbox_exception AS e
                ON e.relay = ?1 AND e.shard = 0 AND e.id = m.id AND e.message_id = m.message_id
            WHERE {is_id}";
        discarded = DISCARDED;
        edited = WAS_EDITED;
        of = "m";
        // A row whose id is not a UUID is not a message.
        is_id = "octet_length(m.message_id) = 36 AND length(replace(m.message_id, '-', '')) = 32
            AND m.message_id NOT GLOB '*[^0-9a-f-]*' AND substr(m.message_id, 9, 1) = '-'
            AND substr(m.message_id, 14, 1) = '-' AND substr(m.message_id, 19, 1) = '-' AND substr(m.message_id, 24, 1) = '-'";
    }

    page = "{rows} AND m.message_id > ?3 AND m.message_id <= ?4 ORDER BY m.message_id LIMIT ?5";
    find = "{rows} AND m.message_id IN (SELECT value FROM json_each(?3)) ORDER BY m.message_id";
    cursor = "SELECT cursor FROM outbox_relay WHERE relay = ?1 AND shard = 0";
    first = "
        SELECT m.message_id FROM outbox_message AS m
        WHERE m.message_id > coalesce((SELECT expired_through FROM outbox_retention), '') AND {is_id}
        ORDER BY m.message_id LIMIT 1";
}

/// SQLite has no schemas.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

/// Implements [`Rows`] for SQLite.
pub(crate) struct SqliteRows {
    connection: SqliteConnection,
    relay: RelayName,
}

enum Which<'a> {
    Page { after: Uuid, until: Uuid, rows_max: u32 },
    These(&'a [Uuid]),
}

impl SqliteRows {
    pub(crate) async fn open(mut connection: SqliteConnection, relay: &RelayName) -> Result<Self, LogError> {
        Migrator::<Sqlite>::new(Line::Outbox).check(&mut connection).await?;
        Ok(Self { connection, relay: relay.clone() })
    }

    /// Reads the chosen rows, with one payload in memory at a time.
    async fn read(&mut self, which: Which<'_>) -> Result<Vec<Row>, LogError> {
        let failed = || LogError::during("read the outbox");
        let mut tx = self.connection.begin().await.map_err(failed())?;
        let cursor: Option<String> = sqlx::query_scalar(&SQL.cursor)
            .bind(self.relay.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed())?;
        let passed = cursor.as_deref().map_or(Ok(0), passed)?;
        let query = match &which {
            Which::Page { after, until, rows_max } => sqlx::query(&SQL.page)
                .bind(self.relay.as_str())
                .bind(passed)
                .bind(after.to_string())
                .bind(until.to_string())
                .bind(i64::from(*rows_max)),
            Which::These(ids) => {
                let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
                let ids = serde_json::Value::from(ids).to_string();
                sqlx::query(&SQL.find).bind(self.relay.as_str()).bind(passed).bind(ids)
            }
        };
        let mut found = Vec::new();
        {
            let mut rows = query.fetch(&mut *tx);
            let (mut labels, mut payloads) = (0, 0);
            while let Some(next) = rows.try_next().await.map_err(failed())? {
                labels += bytes(&next, "headers").map_err(failed())?;
                payloads += bytes(&next, "payload").map_err(failed())?;
                let is_full = labels > LABEL_BYTES_PER_CALL || payloads > HASHED_BYTES_PER_CALL;
                if is_full && !found.is_empty() {
                    break;
                }
                found.push(row(&next)?);
            }
        }
        tx.commit().await.map_err(failed())?;
        Ok(found)
    }
}

/// Returns the id up to which a stored cursor has passed.
pub(super) fn passed(cursor: &str) -> Result<i64, LogError> {
    let cursor = stored::read(cursor)?;
    let after = cursor.progress.as_ref().map_or(0, |progress| progress.after);
    Ok(id_of(&cursor.base)?.max(after))
}

fn bytes(row: &SqliteRow, column: &str) -> Result<usize, sqlx::Error> {
    Ok(row.try_get::<Option<&[u8]>, _>(column)?.map_or(0, <[u8]>::len))
}

fn row(row: &SqliteRow) -> Result<Row, LogError> {
    let failed = || LogError::during("read a row of the outbox");
    let kind = text(row, "kind").map_err(failed())?;
    let content_type = text(row, "content_type").map_err(failed())?;
    let payload: &[u8] = row.try_get("payload").map_err(failed())?;
    let state: Option<String> = row.try_get("state").map_err(failed())?;
    let passed: bool = row.try_get("passed").map_err(failed())?;
    let id: String = row.try_get("message_id").map_err(failed())?;
    Ok(Row {
        id: uuid(&id)?,
        topic: text(row, "topic").map_err(failed())?,
        fingerprint: Fingerprint::of_parts(&kind, &content_type, payload),
        labels: Labels::read(kind, row.try_get("headers").map_err(failed())?),
        stage: stage(state.as_deref(), passed, row.try_get("discarded").map_err(failed())?)?,
        edited: row.try_get("edited").map_err(failed())?,
    })
}

/// Parses the id in a text column.
pub(super) fn uuid(text: &str) -> Result<Uuid, LogError> {
    Uuid::parse_str(text)
        .map_err(|error| LogError::Corrupt { what: "message id", problem: format!("{text:?}: {error}") })
}

#[async_trait]
impl Rows for SqliteRows {
    async fn page(&mut self, after: Uuid, until: Uuid, rows_max: u32) -> Result<Vec<Row>, LogError> {
        self.read(Which::Page { after, until, rows_max }).await
    }

    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Row>, LogError> {
        self.read(Which::These(ids)).await
    }

    async fn first(&mut self) -> Result<Option<Uuid>, LogError> {
        let first: Option<String> = sqlx::query_scalar(&SQL.first)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("find the oldest message"))?;
        first.as_deref().map(uuid).transpose()
    }
}
