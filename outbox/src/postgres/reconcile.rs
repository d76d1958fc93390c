//! Rows in the order of message ids, in PostgreSQL.

use async_trait::async_trait;
use message::Fingerprint;
use migrations::{Identifier, Line, Migrator, Statement, Template};
use sqlx::postgres::PgRow;
use sqlx::types::Uuid;
use sqlx::{Connection as _, PgConnection, Postgres, Row as _};

use crate::log::{LogError, RelayName, stored};
use crate::postgres::mark::{PgMark, array};
use crate::reconcile::{Row, Rows, stage};

// The cursor has passed what was visible at its base ($2) or stands up to its floor ($3) and was
// not in flight ($4), and of the difference that is open what is visible at its head ($5) up to the
// settled id ($6). The fingerprint is made here, so that no payload travels.
macro_rules! rows {
    ($which:literal) => {
        concat!(
            "SELECT m.message_id, m.topic, sha256(",
            "int8send(octet_length(coalesce(m.kind, m.topic))::bigint) || convert_to(coalesce(m.kind, m.topic), 'UTF8') || ",
            "int8send(octet_length(m.content_type)::bigint) || convert_to(m.content_type, 'UTF8') || ",
            "int8send(octet_length(m.payload)::bigint) || m.payload) AS fingerprint, e.state, ",
            "coalesce(pg_visible_in_snapshot(m.xid, (SELECT $2::text::pg_snapshot)), false) ",
            "OR (m.id <= $3 AND m.xid <> ALL ($4::text::xid8[])) ",
            "OR (m.id <= $6 AND coalesce(pg_visible_in_snapshot(m.xid, (SELECT $5::text::pg_snapshot)), false)) AS passed, ",
            "m.id IN (SELECT a.id FROM {schema}outbox_audit AS a WHERE a.relay = $1 AND a.action = 'edit') AS edited ",
            "FROM {schema}outbox_message AS m LEFT JOIN {schema}outbox_exception AS e ",
            "ON e.relay = $1 AND e.shard = 0 AND e.id = m.id WHERE ",
            $which
        )
    };
}

const PAGE: &str = rows!("m.message_id > $7 AND m.message_id <= $8 ORDER BY m.message_id LIMIT $9");
const FIND: &str = rows!("m.message_id = ANY ($7) ORDER BY m.message_id");
const CURSOR: &str = "SELECT cursor FROM {schema}outbox_relay WHERE relay = $1 AND shard = 0";
const FIRST: &str = "
SELECT message_id FROM {schema}outbox_message
WHERE message_id > coalesce((SELECT expired_through FROM {schema}outbox_retention), '00000000-0000-0000-0000-000000000000')
ORDER BY message_id LIMIT 1";
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// See [`Rows`].
pub(crate) struct PostgresRows {
    connection: PgConnection,
    relay: RelayName,
    page: Statement,
    find: Statement,
    cursor: Statement,
    first: Statement,
}

/// The extent of the rows that the stored cursor has passed.
struct Passed {
    base: PgMark,
    head: Option<String>,
    after: i64,
}

impl Passed {
    fn read(cursor: Option<&str>) -> Result<Self, LogError> {
        // A relay that never led has passed nothing.
        let Some(cursor) = cursor else { return Ok(Self { base: PgMark::origin(), head: None, after: 0 }) };
        let cursor = stored::read(cursor)?;
        let head = cursor.progress.as_ref().map(|progress| PgMark::read(&progress.head)).transpose()?;
        Ok(Self {
            base: PgMark::read(&cursor.base)?,
            head: head.map(|head| head.snapshot),
            after: cursor.progress.map_or(0, |progress| progress.after),
        })
    }
}

impl PostgresRows {
    pub(crate) async fn open(
        mut connection: PgConnection,
        schema: Option<&Identifier>,
        relay: &RelayName,
    ) -> Result<Self, LogError> {
        Migrator::<Postgres>::new(Line::Outbox).schema(schema.cloned()).check(&mut connection).await?;
        let render = |text| Template::new(text).schema(schema).render();
        Ok(Self {
            connection,
            relay: relay.clone(),
            page: render(PAGE),
            find: render(FIND),
            cursor: render(CURSOR),
            first: render(FIRST),
        })
    }

    /// Which rows, bound behind what the cursor says.
    async fn read(&mut self, which: Which<'_>) -> Result<Vec<Row>, LogError> {
        let failed = || LogError::during("read the outbox");
        let mut tx = self.connection.begin_with(BEGIN).await.map_err(failed())?;
        let cursor: Option<String> = sqlx::query_scalar(&self.cursor)
            .bind(self.relay.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed())?;
        let passed = Passed::read(cursor.as_deref())?;
        let statement = if matches!(which, Which::Page { .. }) { &self.page } else { &self.find };
        let query = sqlx::query(statement)
            .bind(self.relay.as_str())
            .bind(&passed.base.snapshot)
            .bind(passed.base.floor)
            .bind(array(&passed.base.in_flight))
            .bind(&passed.head)
            .bind(passed.after);
        let query = match which {
            Which::Page { after, until, rows_max } => query.bind(after).bind(until).bind(i64::from(rows_max)),
            Which::These(ids) => query.bind(ids),
        };
        let rows = query.fetch_all(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        rows.iter().map(row).collect()
    }
}

enum Which<'a> {
    Page { after: Uuid, until: Uuid, rows_max: u32 },
    These(&'a [Uuid]),
}

fn row(row: &PgRow) -> Result<Row, LogError> {
    let failed = || LogError::during("read a row of the outbox");
    let state: Option<String> = row.try_get("state").map_err(failed())?;
    let passed: bool = row.try_get("passed").map_err(failed())?;
    let fingerprint: [u8; 32] = row.try_get("fingerprint").map_err(failed())?;
    Ok(Row {
        id: row.try_get("message_id").map_err(failed())?,
        topic: row.try_get("topic").map_err(failed())?,
        fingerprint: Fingerprint::from(fingerprint),
        stage: stage(state.as_deref(), passed)?,
        edited: row.try_get("edited").map_err(failed())?,
    })
}

#[async_trait]
impl Rows for PostgresRows {
    async fn page(&mut self, after: Uuid, until: Uuid, rows_max: u32) -> Result<Vec<Row>, LogError> {
        self.read(Which::Page { after, until, rows_max }).await
    }

    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Row>, LogError> {
        self.read(Which::These(ids)).await
    }

    async fn first(&mut self) -> Result<Option<Uuid>, LogError> {
        let first = sqlx::query_scalar(&self.first).fetch_optional(&mut self.connection).await;
        first.map_err(LogError::during("find the oldest message"))
    }
}
