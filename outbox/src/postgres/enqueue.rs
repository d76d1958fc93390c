//! The statements of producers, in PostgreSQL.

use std::collections::BTreeMap;
use std::time::Duration;

use message::{Message, MessageId, Prepared, Stored};
use migrations::Identifier;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::types::Uuid;
use sqlx::{Arguments, PgConnection, Postgres, Row};
use time::OffsetDateTime;

use crate::columns::ENQUEUED;
use crate::connect::{InvalidUrl, postgres_options};
use crate::dialect::{Dialect, Inserted, Requires, TransactionStatus};
use crate::nodes::HeldNumber;
use crate::pool_error::PoolError;
use crate::postgres::nodes;
use crate::postgres::pools::{self, Use};
use crate::transaction::UnknownCommit;

migrations::statements! {
    parts {
        into = "INSERT INTO {schema}outbox_message ({columns})";
        // A function scan emits its rows in the order of the arrays, and defaults are evaluated row
        // by row: ids ascend in the order of the batch.
        arrays = "SELECT m.message_id, m.topic, m.key, m.kind, m.content_type, m.headers::jsonb, m.traceparent,
            m.tracestate, m.payload, m.deliver_at
            FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::bytea[], $10::timestamptz[]) AS m({columns})";
        columns = ENQUEUED;
        // Decided once for a statement. The mark ends with its transaction, so nothing is stored
        // after a COMMIT or ROLLBACK in SQL that the client did not notice.
        as_required = "WHERE NOT $11 OR current_setting('outbox.transaction', true) = 'own'";
    }

    /// For generated ids, which do not conflict. Checking for conflicts, and returning each row,
    /// costs 7 % of the server's time for ten messages and one business row; arrays cost as much
    /// for one message.
    append = "{into} {arrays} {as_required} RETURNING xid::text";
    append_one = "{into} SELECT $1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10 {as_required} RETURNING xid::text";
    /// Names no conflict column, because each segment of the log has its own key. No other key can
    /// be violated.
    insert = "{into} {arrays} {as_required} ON CONFLICT DO NOTHING RETURNING message_id, xid::text";
    /// Returns digests, because a producer may append but not read what others have written.
    stored = "SELECT message_id, fingerprint, topic, key, headers::text FROM {schema}outbox_stored($1)";
    /// Also compares the xid: another transaction may have enqueued the same id since.
    /// pg_xact_status refuses an xid that has not been assigned (again) since a crash; that
    /// transaction is lost. It returns null for an xid whose status the server has removed.
    fate = "
        SELECT EXISTS (SELECT FROM {schema}outbox_message WHERE message_id = ANY($1) AND xid = $2::text::xid8),
            CASE WHEN $2::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
                THEN coalesce(pg_xact_status($2::text::xid8), 'forgotten') ELSE 'aborted' END";
    take_node = "SELECT number::bigint, epoch FROM {schema}outbox_take_node($1, make_interval(secs => $2))";
    renew_node = "SELECT {schema}outbox_renew_node($1::integer, $2, $3, make_interval(secs => $4))";
    release_node = "SELECT {schema}outbox_release_node($1::integer, $2, $3)";
}

// Each transaction holds a lock on its own xid until its effects are visible. A snapshot would not
// be enough: its upper bound is the last *finished* xid, so a running transaction may lie above it.
// A standby knows neither the locks of its primary nor its latest commits.
pub(super) const RUNNING: &str = "
SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
    AND transactionid = $1::text::xid8::xid)";

fn id(uuid: Uuid) -> Result<MessageId, sqlx::Error> {
    MessageId::try_from(uuid).map_err(decoding)
}

/// Returns the columns of messages, as arrays.
fn columns(messages: &[&Prepared]) -> Result<PgArguments, BoxDynError> {
    let each = || messages.iter().map(|prepared| &prepared.message);
    let mut arguments = PgArguments::default();
    arguments.add(each().map(|m| m.id.as_uuid()).collect::<Vec<_>>())?;
    arguments.add(each().map(|m| m.topic.as_str()).collect::<Vec<_>>())?;
    arguments.add(each().map(|m| m.key.as_ref().map(AsRef::as_ref)).collect::<Vec<Option<&str>>>())?;
    arguments.add(each().map(|m| m.kind.as_str()).collect::<Vec<_>>())?;
    arguments.add(each().map(|m| m.content_type.as_str()).collect::<Vec<_>>())?;
    arguments.add(each().map(headers).collect::<Result<Vec<_>, _>>()?)?;
    arguments.add(each().map(|m| m.trace.as_ref().map(|t| t.parent())).collect::<Vec<_>>())?;
    arguments.add(each().map(|m| m.trace.as_ref().and_then(|t| t.state())).collect::<Vec<_>>())?;
    arguments.add(each().map(|m| &m.payload[..]).collect::<Vec<_>>())?;
    arguments.add(messages.iter().map(|prepared| prepared.deliver_at).collect::<Vec<_>>())?;
    Ok(arguments)
}

/// Returns the same columns of one message, as scalars.
fn columns_of_one(Prepared { message, deliver_at, .. }: &Prepared) -> Result<PgArguments, BoxDynError> {
    let trace = message.trace.as_ref();
    let mut arguments = PgArguments::default();
    arguments.add(message.id.as_uuid())?;
    arguments.add(message.topic.as_str())?;
    arguments.add(message.key.as_ref().map(AsRef::<str>::as_ref))?;
    arguments.add(message.kind.as_str())?;
    arguments.add(message.content_type.as_str())?;
    arguments.add(headers(message)?)?;
    arguments.add(trace.map(|trace| trace.parent()))?;
    arguments.add(trace.and_then(|trace| trace.state()))?;
    arguments.add(&message.payload[..])?;
    arguments.add(deliver_at)?;
    Ok(arguments)
}

/// Reads a row of the function `outbox_stored`. Its headers are a JSON object with digests as
/// hexadecimal digits.
fn read_stored(row: &PgRow) -> Result<Stored, sqlx::Error> {
    let headers: Option<String> = row.try_get("headers")?;
    let digests: BTreeMap<String, Option<String>> = match headers {
        Some(headers) => serde_json::from_str(&headers).map_err(decoding)?,
        None => BTreeMap::new(),
    };
    let digests = digests.into_iter().filter_map(|(name, digest)| Some((name, digest?)));
    let headers = digests.map(|(name, digest)| Ok((name, digest.parse().map_err(decoding)?)));
    Ok(Stored {
        id: id(row.try_get("message_id")?)?,
        fingerprint: row.try_get::<[u8; 32], _>("fingerprint")?.into(),
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        headers: headers.collect::<Result<_, sqlx::Error>>()?,
    })
}

fn decoding(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

fn headers(message: &Message) -> serde_json::Result<Option<String>> {
    (!message.headers.is_empty()).then(|| serde_json::to_string(&message.headers)).transpose()
}

impl Dialect for Postgres {
    type ProducerStatements = Statements;

    fn producer_statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    async fn insert_messages(
        connection: &mut PgConnection,
        statements: &Statements,
        messages: &[&Prepared],
        requires: Requires,
    ) -> Result<Inserted, sqlx::Error> {
        let with_condition = |mut arguments: PgArguments| {
            arguments.add(requires == Requires::Mark)?;
            Ok(arguments)
        };
        if messages.iter().any(|prepared| prepared.is_supplied) {
            let arguments = columns(messages).and_then(with_condition).map_err(sqlx::Error::Encode)?;
            let rows: Vec<(Uuid, String)> =
                sqlx::query_as_with(&statements.insert, arguments).fetch_all(connection).await?;
            let ids = rows.iter().map(|(uuid, _)| id(*uuid)).collect::<Result<_, _>>()?;
            return Ok(Inserted { ids, transaction: rows.into_iter().next().map(|(_, xid)| xid) });
        }
        let (statement, arguments) = match messages {
            [one] => (&statements.append_one, columns_of_one(one)),
            _ => (&statements.append, columns(messages)),
        };
        let arguments = arguments.and_then(with_condition).map_err(sqlx::Error::Encode)?;
        let xids: Vec<String> = sqlx::query_scalar_with(statement, arguments).fetch_all(connection).await?;
        // All or none.
        let ids = messages.iter().take(xids.len()).map(|prepared| prepared.message.id).collect();
        Ok(Inserted { ids, transaction: xids.into_iter().next() })
    }

    async fn stored(
        connection: &mut PgConnection,
        statements: &Statements,
        ids: &[MessageId],
    ) -> Result<Vec<Stored>, sqlx::Error> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
        let rows = sqlx::query(&statements.stored).bind(ids).fetch_all(connection).await?;
        rows.iter().map(read_stored).collect()
    }

    async fn now(connection: &mut PgConnection) -> Result<OffsetDateTime, sqlx::Error> {
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(connection).await
    }

    async fn fate(
        connection: &mut PgConnection,
        statements: &Statements,
        commit: &UnknownCommit,
    ) -> Result<TransactionStatus, sqlx::Error> {
        let (is_standby, is_running): (bool, bool) =
            sqlx::query_as(RUNNING).bind(&commit.transaction).fetch_one(&mut *connection).await?;
        if is_standby || is_running {
            return Ok(if is_standby { TransactionStatus::NotHere } else { TransactionStatus::Running });
        }
        let ids: Vec<Uuid> = commit.message_ids.iter().map(|id| id.as_uuid()).collect();
        let (found, status): (bool, String) = sqlx::query_as(&statements.fate)
            .bind(ids)
            .bind(&commit.transaction)
            .fetch_one(connection)
            .await?;
        Ok(match status.as_str() {
            _ if found => TransactionStatus::Committed,
            _ if commit.transaction.is_none() => TransactionStatus::Unclear,
            "aborted" => TransactionStatus::RolledBack,
            "in progress" => TransactionStatus::Running,
            // After a crash another transaction may have got the same xid, so "committed" alone
            // proves nothing. A removed status proves nothing either, because retention may have
            // removed the rows.
            _ => TransactionStatus::Unclear,
        })
    }

    async fn take_node(
        connection: &mut PgConnection,
        statements: &Statements,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<HeldNumber>, sqlx::Error> {
        nodes::take(connection, statements, holder, lease).await
    }

    async fn renew_node(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &HeldNumber,
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        nodes::renew(connection, statements, held, lease).await
    }

    async fn release_node(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &HeldNumber,
    ) -> Result<bool, sqlx::Error> {
        nodes::release(connection, statements, held).await
    }

    fn options(url: &str, allow_plaintext: bool) -> Result<PgConnectOptions, InvalidUrl> {
        postgres_options(url, allow_plaintext)
    }

    async fn open_pool(
        url: &str,
        idle_in_transaction_max: Duration,
        adjust: impl FnOnce(PgPoolOptions) -> PgPoolOptions + Send,
    ) -> Result<PgPool, PoolError> {
        pools::open(url, idle_in_transaction_max, adjust).await
    }

    fn pool_options(idle_in_transaction_max: Duration) -> PgPoolOptions {
        pools::options(idle_in_transaction_max, Use::Service)
    }

    fn own_pool_options(idle_in_transaction_max: Duration) -> PgPoolOptions {
        pools::options(idle_in_transaction_max, Use::Own)
    }
}
