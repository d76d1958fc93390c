//! Asks the server and the log what `history` decides on.

use sqlx::PgConnection;

use crate::log::{Cursor, LogError};
use crate::postgres::history::{CursorFacts, History, ServerFacts};
use crate::postgres::mark::PgMark;
use crate::postgres::statements::{GIVEN_OUT_AGAIN, PRESENT_RUN};

migrations::statements! {
    parts {
        present_run = PRESENT_RUN;
        given_out_again = GIVEN_OUT_AGAIN;
    }

    /// Begins a run where there is none, or one that came with a dump. Of a run that lasts, nothing
    /// is written.
    begin_run = "
        INSERT INTO {schema}outbox_server_run AS r (singleton)
        SELECT true WHERE NOT EXISTS (
            SELECT FROM {schema}outbox_server_run WHERE started_at = pg_postmaster_start_time())
        ON CONFLICT (singleton) DO UPDATE SET run_id = gen_random_uuid(), started_at = EXCLUDED.started_at
        WHERE r.started_at <> EXCLUDED.started_at";
    unlogged = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = '{schema}outbox_server_run'::regclass";
    /// The first eight digits of a WAL file's name are the timeline that is being written; the
    /// control file tells it only after a checkpoint. The largest transaction id is one of the
    /// table's numbers: `xid` alone would be the answer's text, by which 97 comes after 1000.
    /// Whatever is visible has its id already when
    /// the sequence is read, after the snapshot.
    server = "
        SELECT (SELECT system_identifier::text FROM pg_control_system()),
            ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
            ({present_run}),
            (SELECT system_identifier FROM {schema}outbox_identity),
            pg_snapshot_xmax(pg_current_snapshot())::text,
            (SELECT m.xid::text FROM {schema}outbox_message AS m ORDER BY m.xid DESC LIMIT 1),
            coalesce(pg_sequence_last_value('{schema}outbox_message_id_seq'::regclass), 0),
            (SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1)";
    given_out_again = "{given_out_again}";
}

impl Statements {
    /// Reads what the server says of itself and of the log. Begins a run of the server when none
    /// has begun.
    pub(super) async fn server(&self, connection: &mut PgConnection) -> Result<ServerFacts, LogError> {
        let failed = || LogError::during("tell its history");
        sqlx::query(&self.begin_run).execute(&mut *connection).await.map_err(failed())?;
        let unlogged: bool =
            sqlx::query_scalar(&self.unlogged).fetch_one(&mut *connection).await.map_err(failed())?;
        if !unlogged {
            return Err(LogError::operator(
                "the table outbox_server_run is logged, so it does not tell that the server crashed: run ALTER TABLE \
                 outbox_server_run SET UNLOGGED",
            ));
        }
        type Answer = (String, i64, Option<String>, Option<String>, String, Option<String>, i64, Option<i64>);
        let (system_identifier, timeline, run, recorded_system, next, newest, position, newest_id): Answer =
            sqlx::query_as(&self.server).fetch_one(&mut *connection).await.map_err(failed())?;
        let run = run.ok_or_else(|| LogError::Unavailable {
            reason: String::from("the server was restarted while it was asked for its history"),
            source: None,
        })?;
        Ok(ServerFacts {
            history: History { system_identifier, timeline, run },
            recorded_system,
            next_xid: xid(&next)?,
            newest_xid: newest.as_deref().map(xid).transpose()?,
            position,
            newest_id,
        })
    }

    /// A stored cursor, and what the log says about it.
    pub(super) async fn cursor(
        &self,
        connection: &mut PgConnection,
        cursor: &Cursor,
    ) -> Result<CursorFacts, LogError> {
        let base = PgMark::read(&cursor.base)?;
        let head = cursor.progress.as_ref().map(|progress| PgMark::read(&progress.head)).transpose()?;
        let after = cursor.progress.as_ref().map_or(0, |progress| progress.after);
        // A snapshot that sees nothing says nothing about the rows below its floor.
        let given_out_again = match base.sees_nothing() {
            true => None,
            false => sqlx::query_scalar(&self.given_out_again)
                .bind(base.xmax.to_string())
                .bind(base.floor)
                .fetch_one(connection)
                .await
                .map_err(LogError::during("compare the cursor with the log"))?,
        };
        Ok(CursorFacts { base, head, after, given_out_again })
    }
}

fn xid(text: &str) -> Result<u64, LogError> {
    text.parse().map_err(|_| LogError::Corrupt {
        what: "transaction id",
        problem: format!("{text:?} is not a number of 64 bits"),
    })
}
