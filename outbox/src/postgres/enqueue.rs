//! What producers run.

use std::time::Duration;

use message::MessageId;
use migrations::{Identifier, Statement, Template};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::types::Uuid;
use sqlx::{Executor, PgConnection, PgPool, Postgres, Transaction};
use time::OffsetDateTime;

use crate::connect::{InvalidUrl, postgres_options};
use crate::dialect::{Dialect, Fate, Inserted, Stored};
use crate::new_message::Prepared;
use crate::postgres::nodes::{self, NodeStatements};
use crate::transaction::UnknownCommit;

/// The statements that producers run.
#[doc(hidden)]
#[derive(Debug)]
pub struct Statements {
    insert: Statement,
    stored: Statement,
    fate: Statement,
    pub(super) nodes: NodeStatements,
}

// A function scan emits its rows in the order of the arrays, and defaults are evaluated row by row: ids ascend in
// the order of the batch. Without a column to conflict on, because each segment of the log has a key of its own; no
// other key can be violated.
const INSERT: &str = "
INSERT INTO {schema}outbox_message
    (message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at)
SELECT m.message_id, m.topic, m.key, m.kind, m.content_type, m.headers::jsonb, m.traceparent, m.tracestate,
    m.payload, m.deliver_at
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bytea[], $10::timestamptz[])
    AS m(message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at)
ON CONFLICT DO NOTHING
RETURNING message_id, xid::text";

// Fingerprints, because a producer may append and not read what others have written.
const STORED: &str = "SELECT message_id, fingerprint FROM {schema}outbox_stored($1)";

// Each transaction holds the lock on its own xid until its effects are visible. Not a snapshot: its upper bound is
// the last *finished* xid, so one that runs may lie above it.
const RUNNING: &str = "
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
    AND transactionid = $1::text::xid8::xid)";

// With the xid: the same id may have been enqueued by somebody else since. pg_xact_status refuses an xid that is
// not given out (again) after a crash.
const FATE: &str = "
SELECT EXISTS (SELECT FROM {schema}outbox_message WHERE message_id = ANY($1) AND xid = $2::text::xid8),
    CASE WHEN $2::text::xid8 < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status($2::text::xid8) END";

fn id(uuid: Uuid) -> Result<MessageId, sqlx::Error> {
    MessageId::try_from(uuid).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

impl Dialect for Postgres {
    type Statements = Statements;

    fn statements(schema: Option<&Identifier>) -> Statements {
        let render = |text| Template::new(text).schema(schema).render();
        let nodes = NodeStatements::new(schema);
        Statements { insert: render(INSERT), stored: render(STORED), fate: render(FATE), nodes }
    }

    async fn begin_writing(pool: &PgPool) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin().await
    }

    async fn insert(
        connection: &mut PgConnection,
        statements: &Statements,
        messages: &[&Prepared],
    ) -> Result<Inserted, sqlx::Error> {
        let each = || messages.iter().map(|prepared| &prepared.message);
        let headers = |message: &message::Message| match message.headers.is_empty() {
            true => Ok(None),
            false => serde_json::to_string(&message.headers).map(Some),
        };
        let headers: Result<Vec<Option<String>>, _> = each().map(headers).collect();
        let rows: Vec<(Uuid, String)> = sqlx::query_as(&statements.insert)
            .bind(each().map(|m| m.id.as_uuid()).collect::<Vec<_>>())
            .bind(each().map(|m| m.topic.as_str()).collect::<Vec<_>>())
            .bind(each().map(|m| m.key.as_ref().map(AsRef::as_ref)).collect::<Vec<Option<&str>>>())
            .bind(each().map(|m| m.kind.as_str()).collect::<Vec<_>>())
            .bind(each().map(|m| m.content_type.as_str()).collect::<Vec<_>>())
            .bind(headers.map_err(|error| sqlx::Error::Encode(Box::new(error)))?)
            .bind(each().map(|m| m.trace.as_ref().map(|t| t.parent())).collect::<Vec<_>>())
            .bind(each().map(|m| m.trace.as_ref().and_then(|t| t.state())).collect::<Vec<_>>())
            .bind(each().map(|m| &m.payload[..]).collect::<Vec<_>>())
            .bind(messages.iter().map(|prepared| prepared.deliver_at).collect::<Vec<_>>())
            .fetch_all(connection)
            .await?;
        let ids = rows.iter().map(|(uuid, _)| id(*uuid)).collect::<Result<_, _>>()?;
        Ok(Inserted { ids, transaction: rows.into_iter().next().map(|(_, xid)| xid) })
    }

    async fn stored(
        connection: &mut PgConnection,
        statements: &Statements,
        ids: &[MessageId],
    ) -> Result<Vec<Stored>, sqlx::Error> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
        let rows: Vec<(Uuid, [u8; 32])> =
            sqlx::query_as(&statements.stored).bind(ids).fetch_all(connection).await?;
        rows.into_iter()
            .map(|(uuid, fingerprint)| Ok(Stored { id: id(uuid)?, fingerprint: fingerprint.into() }))
            .collect()
    }

    async fn probe(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
        sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned()::text").fetch_one(connection).await
    }

    async fn now(connection: &mut PgConnection) -> Result<OffsetDateTime, sqlx::Error> {
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(connection).await
    }

    async fn fate(
        connection: &mut PgConnection,
        statements: &Statements,
        commit: &UnknownCommit,
    ) -> Result<Fate, sqlx::Error> {
        let running: bool =
            sqlx::query_scalar(RUNNING).bind(&commit.transaction).fetch_one(&mut *connection).await?;
        if running {
            return Ok(Fate::Running);
        }
        let ids: Vec<Uuid> = commit.message_ids.iter().map(|id| id.as_uuid()).collect();
        let (found, status): (bool, Option<String>) = sqlx::query_as(&statements.fate)
            .bind(ids)
            .bind(&commit.transaction)
            .fetch_one(connection)
            .await?;
        Ok(match status.as_deref() {
            _ if found => Fate::Committed,
            // After a crash another transaction may have got its xid, so this alone proves nothing.
            Some("committed") => Fate::Unclear,
            _ if commit.transaction.is_none() => Fate::Unclear,
            _ => Fate::RolledBack,
        })
    }

    async fn take_node(
        connection: &mut PgConnection,
        statements: &Statements,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<(i64, i64)>, sqlx::Error> {
        nodes::take(connection, &statements.nodes, holder, lease).await
    }

    async fn renew_node(
        connection: &mut PgConnection,
        statements: &Statements,
        held: (i64, i64),
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        nodes::renew(connection, &statements.nodes, held, lease).await
    }

    async fn release_node(
        connection: &mut PgConnection,
        statements: &Statements,
        held: (i64, i64),
    ) -> Result<bool, sqlx::Error> {
        nodes::release(connection, &statements.nodes, held).await
    }

    fn options(url: &str, allow_plaintext: bool) -> Result<PgConnectOptions, InvalidUrl> {
        postgres_options(url, allow_plaintext)
    }

    fn pool_options(idle_in_transaction_max: Duration) -> PgPoolOptions {
        let limit = idle_in_transaction_max.as_millis().to_string();
        PgPoolOptions::new()
            .after_connect(move |connection, _| {
                let limit = limit.clone();
                Box::pin(async move {
                    sqlx::query("SELECT set_config('idle_in_transaction_session_timeout', $1, false)")
                        .bind(limit)
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
            .after_release(|connection, _| {
                Box::pin(async move {
                    // A begin() that was cancelled leaves the session inside a transaction, in which the next
                    // borrower's autocommit statements would vanish. BEGIN before ROLLBACK: a ROLLBACK outside a
                    // transaction is a warning in the server's log each time. In a failed transaction BEGIN fails,
                    // and the pool closes the connection, which is as good.
                    connection.execute("BEGIN; ROLLBACK").await?;
                    Ok(true)
                })
            })
    }
}
