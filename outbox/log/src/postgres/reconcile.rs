//! Rows in the order of message ids, in PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use message::Fingerprint;
use migrations::{Identifier, Line, Migrator, Statement};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::types::Uuid;
use sqlx::{Executor as _, PgConnection, Postgres, Row as _};

use crate::entries::Labels;
use crate::postgres::facts;
use crate::postgres::fragments::{DISCARDED, LABELS, PASSED, SAME_SEGMENT, WAS_EDITED};
use crate::postgres::mark::PgMark;
use crate::postgres::row::{UNBOUNDED, text};
use crate::postgres::store::ONE_PLAN_HERE;
use crate::read_only::begin;
use crate::reconcile::rows::{Row, Rows, stage};
use crate::{LogError, RelayName, stored};

migrations::statements! {
    parts {
        // Ends a call early where the headers are too large, but after the first row.
        cut = "SELECT * FROM (
                SELECT run.*, rank() OVER place AS nth,
                    sum(coalesce(octet_length(run.headers), 0)) OVER place AS bytes
                FROM ({rows}) AS run WINDOW place AS (ORDER BY run.message_id)) AS cut
            WHERE nth = 1 OR bytes <= 8388608 ORDER BY message_id";
        // The fingerprint is computed by the server, so that it sends no payload: over texts in
        // UTF-8, or over the bytes where the database has no encoding. The rows are chosen first;
        // then the exception of each row is looked up separately. A payload above 64 MiB was not
        // published, because no broker accepts it even in chunks, and is not read.
        rows = "SELECT m.message_id, m.topic, {kind} AS kind, {labels} AS headers, sha256(
                int8send(octet_length({kind})::bigint) || convert_to({kind}, {encoding}) ||
                int8send(octet_length(m.content_type)::bigint) || convert_to(m.content_type, {encoding}) ||
                int8send(octet_length({payload})::bigint) || {payload}) AS fingerprint, e.state,
            {passed} AS passed,
            {edited} AS edited, {discarded} AS discarded
            FROM ({chosen}) AS m LEFT JOIN LATERAL (SELECT state FROM {schema}outbox_exception
                WHERE relay = $1 AND shard = 0 AND id = m.id AND message_id = m.message_id LIMIT 1) AS e ON true
            ORDER BY m.message_id";
        // Bounds the bytes that one statement reads and hashes. Only stored sizes are looked at; a
        // header's text is a multiple of them. Both windows count rows of one id as one place.
        chosen = "SELECT * FROM (
                SELECT picked.*, rank() OVER place AS nth,
                    sum(CASE WHEN octet_length(picked.payload) > 67108864 THEN 0 ELSE octet_length(picked.payload) END
                        + 16::bigint * coalesce(pg_column_size(picked.headers), 0)) OVER place AS weight
                FROM ({picked}) AS picked WINDOW place AS (ORDER BY picked.message_id)) AS weighed
            WHERE nth = 1 OR weight <= 67108864";
        payload = "(CASE WHEN octet_length(m.payload) > 67108864 THEN ''::bytea ELSE m.payload END)";
        kind = "coalesce(m.kind, m.topic)";
        encoding = "(CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)";
        labels = LABELS;
        unbounded = UNBOUNDED;
        of = "m";
        passed = PASSED;
        discarded = DISCARDED;
        edited = WAS_EDITED;
        same_segment = SAME_SEGMENT;
    }

    page(picked = "SELECT * FROM {schema}outbox_message
        WHERE message_id > $6 AND message_id <= $7 ORDER BY message_id LIMIT $8::bigint") = "{cut}";
    find(message_id = "asked.message_id", picked = "SELECT found.*
        FROM (SELECT DISTINCT message_id FROM unnest($6::uuid[]) AS ids(message_id)) AS asked
        CROSS JOIN LATERAL (SELECT * FROM {schema}outbox_message
            WHERE message_id = asked.message_id AND {same_segment} LIMIT 1) AS found") = "{cut}";
    cursor = "SELECT cursor FROM {schema}outbox_relay WHERE relay = $1 AND shard = 0";
    first = "
        SELECT message_id FROM {schema}outbox_message
        WHERE message_id > coalesce(
            (SELECT expired_through FROM {schema}outbox_retention), '00000000-0000-0000-0000-000000000000')
        ORDER BY message_id LIMIT 1";
}

/// Implements [`Rows`] for PostgreSQL.
pub(crate) struct PostgresRows {
    connection: PgConnection,
    statement_timeout: Duration,
    relay: RelayName,
    statements: Statements,
}

/// The rows that the stored cursor has passed.
pub(super) struct Passed {
    pub(super) base: PgMark,
    pub(super) head: Option<String>,
    pub(super) after: i64,
    /// Every row up to this id is passed, or its transaction is in `in_flight`. Inside a difference
    /// that is the part of it that was read, but no more than the head's floor: above it, a
    /// transaction that the head does not list may still write.
    pub(super) settled: i64,
    /// The transactions that were in flight at the base or at the head, ascending.
    pub(super) in_flight: Vec<u64>,
}

impl Passed {
    pub(super) fn read(cursor: Option<&str>) -> Result<Self, LogError> {
        // A relay that has never led has passed nothing.
        let Some(cursor) = cursor else { return Ok(Self::new(PgMark::origin(), None, 0)) };
        let cursor = stored::read(cursor)?;
        let head = cursor.progress.as_ref().map(|progress| PgMark::read(&progress.head)).transpose()?;
        let after = cursor.progress.map_or(0, |progress| progress.after);
        Ok(Self::new(PgMark::read(&cursor.base)?, head, after))
    }

    /// Returns the id up to which rows lie that are passed here and not at an earlier cursor. While
    /// the base stays, only the open part of its difference is read: without this bound, a query
    /// about that part would read the whole backlog behind it.
    pub(super) fn ends_at(&self, earlier: &Self) -> i64 {
        let is_same_base =
            self.base.floor == earlier.base.floor && self.base.snapshot == earlier.base.snapshot;
        if is_same_base { self.after } else { i64::MAX }
    }

    /// Begins a query of a statement whose first parameters are a relay and the rows that it has
    /// passed.
    pub(super) fn query<'q>(
        &'q self,
        statement: &'q Statement,
        relay: &'q RelayName,
    ) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement)
            .bind(relay.as_str())
            .bind(&self.base.snapshot)
            .bind(self.base.floor)
            .bind(&self.head)
            .bind(self.after)
    }

    fn new(base: PgMark, head: Option<PgMark>, after: i64) -> Self {
        let read = head.as_ref().map_or(0, |head| after.min(head.floor));
        let mut in_flight = base.in_flight.clone();
        in_flight.extend(head.iter().flat_map(|head| &head.in_flight));
        in_flight.sort_unstable();
        in_flight.dedup();
        Self { settled: base.floor.max(read), in_flight, head: head.map(|head| head.snapshot), after, base }
    }
}

impl PostgresRows {
    pub(crate) async fn open(
        mut connection: PgConnection,
        schema: Option<&Identifier>,
        relay: &RelayName,
        statement_timeout: Duration,
    ) -> Result<Self, LogError> {
        Migrator::<Postgres>::new(Line::Outbox).schema(schema.cloned()).check(&mut connection).await?;
        // Its messages would be in no outbox, and those that were published would be phantoms.
        facts::Statements::new(schema).check_whole(&mut connection).await?;
        Ok(Self { connection, statement_timeout, relay: relay.clone(), statements: Statements::new(schema) })
    }

    /// Reads the chosen rows, in one transaction with the cursor.
    async fn read(&mut self, which: Which<'_>) -> Result<Vec<Row>, LogError> {
        let failed = || LogError::during("read the outbox");
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let cursor: Option<String> = sqlx::query_scalar(&self.statements.cursor)
            .bind(self.relay.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed())?;
        let passed = Passed::read(cursor.as_deref())?;
        let statement =
            if matches!(which, Which::Page { .. }) { &self.statements.page } else { &self.statements.find };
        let query = passed.query(statement, &self.relay);
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
        topic: text(row, "topic").map_err(failed())?,
        labels: Labels::read(
            text(row, "kind").map_err(failed())?,
            row.try_get_unchecked("headers").map_err(failed())?,
        ),
        fingerprint: Fingerprint::from(fingerprint),
        stage: stage(state.as_deref(), passed, row.try_get("discarded").map_err(failed())?)?,
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
        let failed = || LogError::during("find the oldest message");
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let first = sqlx::query_scalar(&self.statements.first).fetch_optional(&mut *tx).await;
        let first = first.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(first)
    }
}
