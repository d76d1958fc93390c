//! Parked entries as a relay would have stored them.

use sqlx::Connection as _;

use crate::Failure;
use crate::rig::{Database, RELAY};

/// The number and the shape of the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) topic: &'a str,
    /// `held`, `scheduled` (due now), or `dead`.
    pub(super) state: &'a str,
    pub(super) rows: u32,
    pub(super) payload_bytes: u32,
    /// The prefix of each key.
    pub(super) key: &'a str,
    pub(super) keys: u32,
}

/// A query for the number of held rows.
pub(super) const HELD: &str = "SELECT count(*) FROM outbox_exception WHERE state = 'held'";

/// Adds the rows in one transaction, with new ids.
pub(super) async fn park(database: &Database, rows: Rows<'_>) -> Result<(), Failure> {
    const EXCEPTIONS: &str = "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, due_at) \
        SELECT $1, $2 + n, (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') \
            || '7' || substr(noise, 1, 3) || '8' || substr(noise, 4, 15))::uuid, \
            $4, $5 || n % $6, $7, CASE $7 WHEN 'scheduled' THEN now() END \
        FROM generate_series(1, $3) AS n CROSS JOIN LATERAL md5(($2 + n)::text) AS noise";
    const CONTENT: &str = "INSERT INTO outbox_parked (relay, id, content_type, payload, enqueued_at) \
        SELECT $1, $2 + n, 'application/octet-stream', convert_to(repeat('x', $4), 'UTF8'), now() \
        FROM generate_series(1, $3) AS n";
    // The ids that the log would have assigned.
    const IDS: &str = "SELECT setval('outbox_message_id_seq', nextval('outbox_message_id_seq') + $1) - $1";
    let Rows { topic, state, rows, payload_bytes, key, keys } = rows;
    let (rows, keys) = (i64::from(rows), i64::from(keys));
    let mut connection = database.connect().await?;
    let mut transaction = connection.begin().await?;
    let before: i64 = sqlx::query_scalar(IDS).bind(rows).fetch_one(&mut *transaction).await?;
    let exceptions = sqlx::query(EXCEPTIONS).bind(RELAY).bind(before).bind(rows);
    exceptions.bind(topic).bind(key).bind(keys).bind(state).execute(&mut *transaction).await?;
    let content = sqlx::query(CONTENT).bind(RELAY).bind(before).bind(rows);
    content.bind(i32::try_from(payload_bytes)?).execute(&mut *transaction).await?;
    transaction.commit().await?;
    // As on a server that has been running for a while: hint bits and statistics are set.
    database.run("VACUUM ANALYZE outbox_exception").await?;
    database.run("VACUUM ANALYZE outbox_parked").await
}

/// Removes all entries, parked or not.
pub(super) async fn clear(database: &Database) -> Result<(), Failure> {
    database.run("TRUNCATE outbox_message, outbox_exception, outbox_parked, outbox_relay CASCADE").await
}
