//! The relay that publishes while a table is handed over.

use migrations::Statement;
use operate::OperateError;
use outbox_log::watch::{HolderRow, Life, Vigil};
use sqlx::PgConnection;
use tokio::time::Instant;

use super::call::{Limit, failed};

/// The holder of the lease of relay $1, unless the relay is paused, in the columns of a
/// [`HolderRow`].
pub(super) const LEADER: &str = "
SELECT r.holder, extract(epoch FROM r.lease_until - clock_timestamp())::float8, r.epoch, r.lease_until::text,
    r.lease_seconds
FROM {schema}outbox_relay AS r WHERE r.relay = $1 AND r.shard = 0 AND r.holder IS NOT NULL
    AND NOT EXISTS (SELECT FROM {schema}outbox_pause AS p WHERE p.relay = r.relay AND p.kind = 'pipeline')";

/// Returns the holder of a relay's lease, unless the relay is paused. Watches a lease that ends
/// later than its holder can have requested: a live holder renews it meanwhile. `statement` is
/// [`LEADER`] with its schema.
pub(super) async fn holder(
    connection: &mut PgConnection,
    statement: &Statement,
    relay: &str,
    limit: Limit,
) -> Result<Option<String>, OperateError> {
    let mut vigil = Vigil::default();
    loop {
        let found = sqlx::query_as(statement).bind(relay).fetch_optional(&mut *connection);
        let found = async { found.await.map_err(failed("find a running relay")) };
        let found: Option<HolderRow<String>> = limit.short(found).await?;
        match vigil.decide(found, Instant::now()) {
            Life::Over(_) => return Ok(None),
            Life::Alive { holder } => return Ok(Some(holder)),
            Life::Unknown(left) => tokio::time::sleep(left).await,
        }
    }
}
