//! Reads the facts on which `history` decides, from the server and from the log.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};

use crate::failure::within;
use crate::postgres::fragments::{MISSING_SEGMENTS, PRESENT_RUN};
use crate::postgres::history::{CursorFacts, ServerFacts};
use crate::postgres::mark::{History, PgMark};
use crate::{Cursor, LogError};

migrations::statements! {
    parts {
        present_run = PRESENT_RUN;
        missing_segments = MISSING_SEGMENTS;
    }

    /// Begins a run if there is none, or if the row came with a dump. Writes nothing while a run
    /// lasts.
    begin_run = "
        INSERT INTO {schema}outbox_server_run AS r (singleton)
        SELECT true WHERE NOT EXISTS (
            SELECT FROM {schema}outbox_server_run WHERE started_at = pg_postmaster_start_time())
        ON CONFLICT (singleton) DO UPDATE SET run_id = gen_random_uuid(), started_at = EXCLUDED.started_at
        WHERE r.started_at <> EXCLUDED.started_at";
    unlogged = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = '{schema}outbox_server_run'::regclass";
    /// The timeline is 0 where the server hides it. The largest transaction id is qualified with
    /// the table: plain `xid` would sort by the text of the answer, where 97 comes after 1000. The
    /// sequence is read after the snapshot, so every visible row already has its id by then. It is
    /// read itself: without the right, `pg_sequence_last_value` of PostgreSQL 17 and later answers
    /// null, as for a sequence that was set back.
    server = "
        SELECT (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
            {schema}outbox_timeline() AS timeline,
            ({present_run}) AS run,
            (SELECT system_identifier FROM {schema}outbox_identity) AS recorded_system,
            pg_snapshot_xmax(pg_current_snapshot())::text AS next_xid,
            (SELECT m.xid::text FROM {schema}outbox_message AS m ORDER BY m.xid DESC LIMIT 1) AS newest_xid,
            (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}outbox_message_id_seq) AS position,
            (SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1) AS newest_id,
            ({missing_segments}) AS missing_segments";
    missing = "{missing_segments}";
    /// Finds a row below the floor that is too young for it. $1 and $2: continue behind this
    /// transaction id and id, $3 floor, $4 maximum rows, $5 xmax of the head of the open difference
    /// or null, $6 its floor. A sequence that was set back gives out low ids again, and the pages
    /// of the log do not reach them. Walks one index and steps over the transactions in flight:
    /// their rows are invisible, so no limit would count them. The gaps between them come in sorted
    /// order. Rows that were rolled back are walked once: this marks their index entries as dead.
    young = "
        WITH gap AS MATERIALIZED (
            SELECT xid, id, lead(xid, 1, '18446744073709551615'::xid8) OVER (ORDER BY xid, id) AS until FROM (
                SELECT $1::text::xid8, $2::bigint
                UNION ALL
                SELECT flight.xid, 9223372036854775807 FROM pg_snapshot_xip(pg_current_snapshot()) AS flight(xid)
                WHERE flight.xid >= $1::text::xid8) AS edge (xid, id)),
        young AS MATERIALIZED (
            SELECT seen.xid, seen.id FROM gap CROSS JOIN LATERAL (
                SELECT m.xid, m.id FROM {schema}outbox_message AS m
                WHERE (m.xid, m.id) > (gap.xid, gap.id) AND m.xid < gap.until
                ORDER BY m.xid, m.id LIMIT $4) AS seen
            LIMIT $4),
        last AS (SELECT xid, id FROM young ORDER BY xid DESC, id DESC LIMIT 1)
        SELECT (SELECT min(id) FROM young WHERE id <= $3 OR xid >= $5::text::xid8 AND id <= $6),
            (SELECT xid::text FROM last), (SELECT id FROM last), (SELECT count(*) FROM young)";
}

/// SQLSTATE of a statement that divides by zero, and so refuses itself: the log lacks a segment
/// (`fragments::WHOLE`), or an operator has changed an entry that a checkpoint removes
/// (`statements::Statements::checkpoint_with_changes`).
const REFUSED_ITSELF: &str = "22012";

/// Returns whether a statement has refused itself.
pub(super) fn has_refused_itself(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == REFUSED_ITSELF)
}

/// Maximum number of rows that one call examines.
const YOUNG_AT_ONCE: i64 = 200_000;

/// The progress of a search through the young rows of a cursor.
pub(super) struct YoungRows {
    floor: i64,
    /// xmax and floor of the head of the open difference. A row may be too young for the head
    /// alone.
    head: Option<(String, i64)>,
    behind: (String, i64),
}

/// The outcome of examining some of the rows.
pub(super) enum Looked {
    /// There are more rows.
    On,
    /// These were the last rows. Contains a row, if any, with an id that was given out again.
    Done(Option<i64>),
}

impl YoungRows {
    /// Begins with the young rows of a mark; `None` for a snapshot that sees nothing, which proves
    /// nothing about the rows below its floor.
    pub(super) fn of(base: &PgMark) -> Option<Self> {
        Self::between(base, None)
    }

    /// Begins with the young rows of a cursor.
    pub(super) fn of_cursor(cursor: &Cursor) -> Result<Option<Self>, LogError> {
        let head = cursor.progress.as_ref().map(|progress| PgMark::read(&progress.head)).transpose()?;
        Ok(Self::between(&PgMark::read(&cursor.base)?, head.as_ref()))
    }

    fn between(base: &PgMark, head: Option<&PgMark>) -> Option<Self> {
        let bounds = |mark: &PgMark| (!mark.sees_nothing()).then(|| (mark.xmax.to_string(), mark.floor));
        let (base, head) = (bounds(base), head.and_then(bounds));
        let (xmax, _) = base.as_ref().or(head.as_ref())?;
        // No row has an id of 0.
        let floor = base.as_ref().map_or(0, |(_, floor)| *floor);
        Some(Self { floor, behind: (xmax.clone(), 0), head })
    }
}

impl Statements {
    /// Reads what the server reports about itself and the log. Begins a run of the server when none
    /// has begun.
    pub(super) async fn server(&self, connection: &mut PgConnection) -> Result<ServerFacts, LogError> {
        let failed = || LogError::during("report its history");
        sqlx::query(&self.begin_run).execute(&mut *connection).await.map_err(failed())?;
        let unlogged: bool =
            sqlx::query_scalar(&self.unlogged).fetch_one(&mut *connection).await.map_err(failed())?;
        if !unlogged {
            return Err(LogError::operator(
                "the table outbox_server_run is logged, so it cannot show that the server crashed: run \
                 ALTER TABLE outbox_server_run SET UNLOGGED",
            ));
        }
        let row = sqlx::query(&self.server).fetch_one(&mut *connection).await.map_err(failed())?;
        let missing: Option<String> = row.try_get("missing_segments").map_err(failed())?;
        if let Some(missing) = missing {
            return Err(LogError::without_segments(&missing));
        }
        let next_xid: String = row.try_get("next_xid").map_err(failed())?;
        let newest_xid: Option<String> = row.try_get("newest_xid").map_err(failed())?;
        let run: Option<String> = row.try_get("run").map_err(failed())?;
        let run = run.ok_or_else(|| LogError::Unavailable {
            reason: String::from("the server was restarted while it reported its history"),
            source: None,
        })?;
        Ok(ServerFacts {
            history: History {
                system_identifier: row.try_get("system_identifier").map_err(failed())?,
                timeline: row.try_get("timeline").map_err(failed())?,
                run,
            },
            recorded_system: row.try_get("recorded_system").map_err(failed())?,
            next_xid: xid(&next_xid)?,
            newest_xid: newest_xid.as_deref().map(xid).transpose()?,
            position: row.try_get("position").map_err(failed())?,
            newest_id: row.try_get("newest_id").map_err(failed())?,
        })
    }

    /// Checks that the log has all of its segments. Needs no right, and writes nothing.
    pub(super) async fn check_whole(&self, connection: &mut PgConnection) -> Result<(), LogError> {
        let missing: Option<String> = sqlx::query_scalar(&self.missing)
            .fetch_one(connection)
            .await
            .map_err(LogError::during("look for the segments of the log"))?;
        missing.map_or(Ok(()), |missing| Err(LogError::without_segments(&missing)))
    }

    /// Converts the error of a statement that reads the log. Where a segment is missing, the error
    /// names it.
    pub(super) async fn unread(
        &self,
        connection: &mut PgConnection,
        what: &'static str,
        error: sqlx::Error,
    ) -> LogError {
        if !has_refused_itself(&error) {
            return LogError::during(what)(error);
        }
        match self.server(connection).await {
            Ok(_) => LogError::Unavailable {
                reason: String::from(
                    "a segment of the log was detached and attached again while it was read",
                ),
                source: Some(Box::new(error)),
            },
            Err(why) => why,
        }
    }

    /// Examines some of the young rows. A backlog of days has more of them than one call may read.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        rows: &mut YoungRows,
    ) -> Result<Looked, LogError> {
        type Answer = (Option<i64>, Option<String>, Option<i64>, i64);
        let (again, xid, id, count): Answer = sqlx::query_as(&self.young)
            .bind(&rows.behind.0)
            .bind(rows.behind.1)
            .bind(rows.floor)
            .bind(YOUNG_AT_ONCE)
            .bind(rows.head.as_ref().map(|(xmax, _)| xmax))
            .bind(rows.head.as_ref().map(|(_, floor)| *floor))
            .fetch_one(connection)
            .await
            .map_err(LogError::during("find ids that were assigned again"))?;
        match (again, xid, id) {
            (None, Some(xid), Some(id)) if count == YOUNG_AT_ONCE => {
                rows.behind = (xid, id);
                Ok(Looked::On)
            }
            _ => Ok(Looked::Done(again)),
        }
    }

    /// Examines all of them. `limit` is the maximum duration of one step.
    pub(super) async fn look_at_all(
        &self,
        connection: &mut PgConnection,
        rows: Option<YoungRows>,
        limit: Duration,
    ) -> Result<Option<i64>, LogError> {
        let Some(mut rows) = rows else { return Ok(None) };
        loop {
            if let Looked::Done(again) = within(limit, self.look(connection, &mut rows)).await? {
                return Ok(again);
            }
        }
    }
}

impl CursorFacts {
    /// Combines a stored cursor with the finding about it in the log.
    pub(super) fn of(cursor: &Cursor, given_out_again: Option<i64>) -> Result<Self, LogError> {
        let base = PgMark::read(&cursor.base)?;
        let head = cursor.progress.as_ref().map(|progress| PgMark::read(&progress.head)).transpose()?;
        let after = cursor.progress.as_ref().map_or(0, |progress| progress.after);
        Ok(Self { base, head, after, given_out_again })
    }
}

fn xid(text: &str) -> Result<u64, LogError> {
    text.parse().map_err(|_| LogError::Corrupt {
        what: "transaction id",
        problem: format!("{text:?} is not a number of 64 bits"),
    })
}
