//! The relay that publishes while a table is handed over.

use std::time::Duration;

use migrations::Statement;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

/// $1 is the relay. A lease that ends later than its holder can have asked for, because a clock was
/// ahead, does not prove that its holder lives; `watch_seconds` is its length.
pub(super) const LEADER: &str = "
SELECT r.holder, r.epoch, r.lease_until::text AS until,
    CASE WHEN r.lease_until > clock_timestamp() + make_interval(secs => r.lease_seconds + 1)
        THEN r.lease_seconds END AS watch_seconds
FROM {schema}outbox_relay AS r WHERE r.relay = $1 AND r.shard = 0 AND r.lease_until > clock_timestamp()
    AND NOT EXISTS (SELECT FROM {schema}outbox_pause AS p WHERE p.relay = r.relay AND p.kind = 'pipeline')";

/// A lease that has not ended.
#[derive(Debug)]
struct Leader {
    holder: String,
    epoch: i64,
    until: String,
    watch_seconds: Option<f64>,
}

/// Returns the holder of a relay's lease, unless the relay is paused. Watches a doubtful lease for
/// its length: a live holder renews it meanwhile. `statement` is [`LEADER`] with its schema.
pub(super) async fn holder(
    connection: &mut PgConnection,
    statement: &Statement,
    relay: &str,
) -> Result<Option<String>, sqlx::Error> {
    let Some(found) = ask(connection, statement, relay).await? else { return Ok(None) };
    let watch = found.watch_seconds.map(Duration::try_from_secs_f64);
    let Some(Ok(length)) = watch else { return Ok(Some(found.holder)) };
    tokio::time::sleep(length).await;
    let again = ask(connection, statement, relay).await?;
    let is_renewed = |again: &Leader| again.epoch != found.epoch || again.until != found.until;
    Ok(again.filter(is_renewed).map(|again| again.holder))
}

async fn ask(
    connection: &mut PgConnection,
    statement: &Statement,
    relay: &str,
) -> Result<Option<Leader>, sqlx::Error> {
    let row = sqlx::query(statement).bind(relay).fetch_optional(connection).await?;
    row.as_ref().map(leader).transpose()
}

fn leader(row: &PgRow) -> Result<Leader, sqlx::Error> {
    Ok(Leader {
        holder: row.try_get("holder")?,
        epoch: row.try_get("epoch")?,
        until: row.try_get("until")?,
        watch_seconds: row.try_get("watch_seconds")?,
    })
}
