//! Numbers of nodes: processes that share the file.

use std::sync::LazyLock;
use std::time::Duration;

use sqlx::SqliteConnection;

use crate::nodes::HeldNumber;
use crate::sqlite::clock::NOW;

migrations::statements! {
    parts { now = NOW; }

    /// ?1 holder, ?2 lease in microseconds. Takes the lowest free number, otherwise a new one.
    /// There is one writer at a time, so no other process interferes; the second check of the lease
    /// is redundant.
    take = "
        INSERT INTO outbox_node AS n (number, epoch, holder, lease_until)
        SELECT free.number, 1, ?1, {now} + ?2 FROM (SELECT coalesce( (SELECT min(number) FROM outbox_node
            WHERE (lease_until IS NULL OR lease_until <= {now}) AND epoch < 4294967295),
            (SELECT max(number) + 1 FROM outbox_node), 0) AS number) AS free WHERE free.number <= 65535
            ON CONFLICT (number) DO UPDATE
        SET epoch = n.epoch + 1, holder = excluded.holder, lease_until = excluded.lease_until, taken_at =
            {now}
            WHERE n.lease_until IS NULL OR n.lease_until <= {now} RETURNING number, epoch";
    /// ?1 number, ?2 epoch, ?3 holder, ?4 lease in microseconds. Also succeeds after the lease has
    /// ended, as long as no other node has taken the number.
    renew = "
        UPDATE outbox_node SET lease_until = {now} + ?4 WHERE number = ?1 AND epoch = ?2
            AND holder = ?3";
    /// ?1 number, ?2 epoch, ?3 holder.
    release = "
        UPDATE outbox_node SET holder = NULL, lease_until = NULL WHERE number = ?1 AND epoch = ?2
            AND holder = ?3";
}

/// Without a schema.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 2)
}

pub(super) async fn take(
    connection: &mut SqliteConnection,
    holder: &str,
    lease: Duration,
) -> Result<Option<HeldNumber>, sqlx::Error> {
    let taken: Option<(i64, i64)> =
        sqlx::query_as(&SQL.take).bind(holder).bind(micros(lease)).fetch_optional(connection).await?;
    Ok(taken.map(|(number, epoch)| HeldNumber { number, epoch, holder: holder.to_owned() }))
}

pub(super) async fn renew(
    connection: &mut SqliteConnection,
    held: &HeldNumber,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    let renewed = sqlx::query(&SQL.renew)
        .bind(held.number)
        .bind(held.epoch)
        .bind(&held.holder)
        .bind(micros(lease))
        .execute(connection)
        .await?;
    Ok(renewed.rows_affected() == 1)
}

pub(super) async fn release(
    connection: &mut SqliteConnection,
    held: &HeldNumber,
) -> Result<bool, sqlx::Error> {
    let released = sqlx::query(&SQL.release)
        .bind(held.number)
        .bind(held.epoch)
        .bind(&held.holder)
        .execute(connection)
        .await?;
    Ok(released.rows_affected() == 1)
}
