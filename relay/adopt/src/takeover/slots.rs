//! Checks whether the reader of a replication slot has received everything from before the
//! adoption.
//!
//! The position that a reader confirms is not enough. It stops where the publication lets nothing
//! more through, which is the effect of removing the table: the last row is confirmed, while other
//! tables continue. So the rest of the log is decoded, on a copy of the slot.

use operate::OperateError;
use serde::Serialize;
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection};

use super::failed;

/// A logical replication slot of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Its name.
    pub slot: String,
    /// Whether a client reads it.
    pub is_active: bool,
    /// Whether everything from before the adoption is confirmed.
    pub is_through: bool,
    /// The reason why this is uncertain, and what to do.
    pub doubt: Option<String>,
}

/// The rows that an adoption left in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left<'a> {
    /// The table.
    pub(super) oid: i64,
    /// The publication that it has left.
    pub(super) publication: &'a str,
    /// A position after its last row; `None` if the SQL was run by hand.
    pub(super) lsn: Option<&'a str>,
    /// The user who runs the query.
    pub(super) user: &'a str,
}

/// $1 is a position; null means the current one.
const SLOTS: &str = "
SELECT to_jsonb(f) FROM (
    SELECT s.slot_name::text AS slot, s.plugin::text AS plugin, s.active AS is_active,
        coalesce(s.confirmed_flush_lsn >= coalesce($1::pg_lsn, pg_current_wal_lsn()), false) AS is_confirmed
    FROM pg_replication_slots AS s
    WHERE s.slot_type = 'logical' AND s.database = current_database() ORDER BY s.slot_name) AS f";

#[derive(serde::Deserialize)]
struct Position {
    slot: String,
    plugin: String,
    is_active: bool,
    is_confirmed: bool,
}

/// The plugin of publications, the only one that can select the rows of one publication.
const PLUGIN: &str = "pgoutput";

/// $1 is the slot, $2 the name of the copy, which is dropped with this connection.
const COPY: &str = "SELECT pg_copy_logical_replication_slot($1, $2, true)";

/// Returns whether the changes include an insert into the table (`I` and the table's oid), or reach
/// the limit, so that some remain unchecked. $1 is the copy, $2 a position or null, $3 the maximum
/// number of messages, $4 the publication, $5 the table. Up to version 14, transactions without a
/// row count as messages as well.
const REST: &str = "
SELECT count(*) >= $3 OR coalesce(bool_or(substring(data FOR 5) = '\\x49'::bytea || oidsend($5::bigint::oid)), false)
FROM pg_logical_slot_peek_binary_changes($1, $2::pg_lsn, $3, 'proto_version', '1', 'publication_names', $4)";

/// Maximum number of messages decoded for one check.
const LOOKED_AT_MAX: i32 = 10_000;

const DROP: &str = "SELECT pg_drop_replication_slot($1)";

/// Returns the position that a slot must reach: the end of the write-ahead log.
pub(super) async fn position(connection: &mut PgConnection) -> Result<String, OperateError> {
    let lsn = sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text").fetch_one(connection).await;
    lsn.map_err(failed("read the position in the write-ahead log"))
}

/// Returns the slots of the database and the progress of each.
pub(super) async fn look(connection: &mut PgConnection, left: Left<'_>) -> Result<Vec<Slot>, OperateError> {
    let positions: Vec<Json<Position>> = sqlx::query_scalar(SLOTS)
        .bind(left.lsn)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed("view slots"))?;
    let mut slots = Vec::with_capacity(positions.len());
    for (number, Json(position)) in positions.into_iter().enumerate() {
        let Position { slot, plugin, is_active, is_confirmed } = position;
        let (is_through, doubt) = if is_confirmed {
            (true, None)
        } else if plugin != PLUGIN {
            let doubt = format!(
                "its plugin is {plugin}, which cannot be checked: compare the last old id with the last one in the topic"
            );
            (false, Some(doubt))
        } else {
            match has_rest(&mut *connection, &slot, number, left).await {
                Ok(true) => (false, None),
                Ok(false) if is_active => (true, None),
                // A snapshot reads the table instead of the slot, and may still run.
                Ok(false) => {
                    let doubt = "its log has no more rows, but its reader is not connected and may still \
                                 need to finish a snapshot";
                    (false, Some(doubt.to_owned()))
                }
                Err(error) => (false, Some(unreadable(&error, left.user))),
            }
        };
        slots.push(Slot { slot, is_active, is_through, doubt });
    }
    Ok(slots)
}

/// Returns whether the log still has rows of the table between the reader's confirmed position and
/// the adoption.
async fn has_rest(
    connection: &mut PgConnection,
    slot: &str,
    number: usize,
    left: Left<'_>,
) -> Result<bool, sqlx::Error> {
    // One transaction keeps a pooler on one session. An error drops the copy.
    let mut tx = connection.begin().await?;
    let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await?;
    let copy = format!("outbox_adopt_{process}_{number}");
    sqlx::query(COPY).bind(slot).bind(&copy).execute(&mut *tx).await?;
    let rest = sqlx::query_scalar(REST)
        .bind(&copy)
        .bind(left.lsn)
        .bind(LOOKED_AT_MAX)
        .bind(left.publication)
        .bind(left.oid)
        .fetch_one(&mut *tx)
        .await?;
    sqlx::query(DROP).bind(&copy).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(rest)
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";

fn unreadable(error: &sqlx::Error, user: &str) -> String {
    let told = error.as_database_error();
    let text = told.map_or_else(|| error.to_string(), |it| it.message().to_owned());
    let is_refused = told.and_then(|it| it.code()).as_deref() == Some(INSUFFICIENT_PRIVILEGE);
    let help = if is_refused { format!("ALTER ROLE {user} REPLICATION") } else { String::from("try again") };
    format!("could not read its log ({text}): {help}")
}
