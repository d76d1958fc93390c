//! Relays that publish while a table is handed over: those of the outbox that hold their lease and
//! do not heed a pause.
//!
//! A relay looks for pauses now and then, and nothing records that it has seen one. So a pause
//! counts only once it has lasted for [`HEEDED_AFTER`].

use std::collections::BTreeMap;
use std::time::Duration;

use migrations::Statement;
use operate::OperateError;
use outbox_log::watch::{HolderRow, Life, Vigil};
use sqlx::PgConnection;
use sqlx::types::Json;
use tokio::time::Instant;

use super::call::{Limit, failed};

/// The time after which no relay publishes that was running when it was paused: longer than any one
/// of its calls to the database lasts (30 s, by default), and the interval at which it looks (400
/// ms).
const HEEDED_AFTER: Duration = Duration::from_secs(35);

/// The relays of the outbox whose leases have a holder, and for how many seconds each has been
/// paused.
pub(super) const LEADERS: &str = "
SELECT to_jsonb(f) FROM (
SELECT r.relay, r.holder, extract(epoch FROM r.lease_until - clock_timestamp())::float8 AS expires_in, r.epoch,
    r.lease_until::text AS lease_until, r.lease_seconds,
    extract(epoch FROM clock_timestamp() - p.paused_at)::float8 AS paused_for
FROM {schema}outbox_relay AS r
    LEFT JOIN {schema}outbox_pause AS p ON p.relay = r.relay AND p.kind = 'pipeline'
WHERE r.shard = 0 AND r.holder IS NOT NULL ORDER BY r.relay) AS f";

#[derive(Debug, Clone, serde::Deserialize)]
struct Row {
    relay: String,
    holder: String,
    expires_in: f64,
    epoch: i64,
    lease_until: String,
    lease_seconds: Option<f64>,
    paused_for: Option<f64>,
}

/// A relay that may publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) relay: String,
    /// The process that holds the lease.
    pub(super) holder: String,
    /// Whether it is paused, but has perhaps not seen it.
    pub(super) is_paused: bool,
}

/// The result of one look at all relays.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// None publishes.
    Quiet,
    /// This one may publish.
    Leads(Leader),
    /// Look again after this time: the lease of this one may be over, or its pause heeded.
    Wait(Duration, Leader),
}

/// A relay as it was seen before.
#[derive(Debug, Default)]
struct Known {
    /// Watches a lease that ends later than its holder can have requested: a live holder renews it
    /// meanwhile.
    vigil: Vigil<String>,
    /// Since when this relay has been seen paused, should the database's clock be set back.
    paused_since: Option<Instant>,
}

/// The relays of an outbox, seen over time.
pub(super) struct Leaders {
    statement: Statement,
    known: BTreeMap<String, Known>,
}

impl Leaders {
    /// Has seen none yet. `statement` is [`LEADERS`] with its schema.
    pub(super) fn new(statement: Statement) -> Self {
        Self { statement, known: BTreeMap::new() }
    }

    /// Returns a relay that publishes, if there is one. Waits until pauses are heeded.
    pub(super) async fn find(
        &mut self,
        connection: &mut PgConnection,
        limit: Limit,
    ) -> Result<Option<Leader>, OperateError> {
        loop {
            match self.look(&mut *connection, limit).await? {
                Look::Quiet => return Ok(None),
                Look::Leads(leader) => return Ok(Some(leader)),
                Look::Wait(left, _) => tokio::time::sleep(left).await,
            }
        }
    }

    /// Returns a relay that may publish, if there is one. Does not wait: producers wait behind the
    /// lock.
    pub(super) async fn find_at_once(
        &mut self,
        connection: &mut PgConnection,
        limit: Limit,
    ) -> Result<Option<Leader>, OperateError> {
        Ok(match self.look(connection, limit).await? {
            Look::Quiet => None,
            Look::Leads(leader) | Look::Wait(_, leader) => Some(leader),
        })
    }

    async fn look(&mut self, connection: &mut PgConnection, limit: Limit) -> Result<Look, OperateError> {
        let found = sqlx::query_scalar(&self.statement).fetch_all(connection);
        let found = async { found.await.map_err(failed("find a running relay")) };
        let found: Vec<Json<Row>> = limit.short(found).await?;
        Ok(self.decide(found.into_iter().map(|Json(row)| row).collect(), Instant::now()))
    }

    fn decide(&mut self, found: Vec<Row>, now: Instant) -> Look {
        let mut look = Look::Quiet;
        for row in found {
            let known = self.known.entry(row.relay.clone()).or_default();
            let heeded_in = known.heeded_in(row.paused_for, now);
            let leader =
                Leader { relay: row.relay, holder: row.holder.clone(), is_paused: heeded_in.is_some() };
            let lease: HolderRow<String> =
                (row.holder, row.expires_in, row.epoch, row.lease_until, row.lease_seconds);
            let left = match (known.vigil.decide(Some(lease), now), heeded_in) {
                (Life::Over(_), _) | (_, Some(Duration::ZERO)) => continue,
                (Life::Alive { .. }, None) => return Look::Leads(leader),
                (Life::Alive { .. }, Some(left)) | (Life::Unknown(left), None) => left,
                (Life::Unknown(left), Some(heeded_in)) => left.min(heeded_in),
            };
            if !matches!(look, Look::Wait(shorter, _) if shorter <= left) {
                look = Look::Wait(left, leader);
            }
        }
        look
    }
}

impl Known {
    /// Returns the time after which the relay heeds its pause; `None` if it is not paused.
    fn heeded_in(&mut self, paused_for: Option<f64>, now: Instant) -> Option<Duration> {
        let Some(paused_for) = paused_for else {
            self.paused_since = None;
            return None;
        };
        let since = *self.paused_since.get_or_insert(now);
        let stored = Duration::try_from_secs_f64(paused_for).unwrap_or_default();
        Some(HEEDED_AFTER.saturating_sub(stored.max(now.duration_since(since))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(relay: &str, paused_for: Option<f64>) -> Row {
        Row {
            relay: relay.to_owned(),
            holder: format!("{relay}-1"),
            expires_in: 12.0,
            epoch: 3,
            lease_until: String::from("t"),
            lease_seconds: Some(15.0),
            paused_for,
        }
    }

    fn leaders() -> Leaders {
        Leaders::new(migrations::Template::new(LEADERS).render())
    }

    fn leader(relay: &str, is_paused: bool) -> Leader {
        Leader { relay: relay.to_owned(), holder: format!("{relay}-1"), is_paused }
    }

    #[test]
    fn a_pause_counts_once_the_relay_must_have_seen_it() {
        let now = Instant::now();
        let paused = |seconds| vec![row("a", Some(seconds))];
        let wait = |seconds| Look::Wait(Duration::from_secs_f64(seconds), leader("a", true));
        assert_eq!(leaders().decide(paused(0.25), now), wait(34.75));
        assert_eq!(leaders().decide(paused(35.0), now), Look::Quiet);
        // The database's clock was set back.
        let mut leaders = leaders();
        assert_eq!(leaders.decide(paused(-3_600.0), now), wait(35.0));
        assert_eq!(leaders.decide(paused(-3_566.0), now + Duration::from_secs(34)), wait(1.0));
        assert_eq!(leaders.decide(paused(-3_565.0), now + Duration::from_secs(35)), Look::Quiet);
        assert_eq!(leaders.decide(vec![row("a", None)], now), Look::Leads(leader("a", false)), "resumed");
        assert_eq!(leaders.decide(paused(0.0), now), wait(35.0), "and paused again");
    }

    #[test]
    fn each_relay_of_the_outbox_counts() {
        let now = Instant::now();
        assert_eq!(leaders().decide(Vec::new(), now), Look::Quiet);
        let over = Row { expires_in: -1.0, ..row("a", None) };
        assert_eq!(leaders().decide(vec![over.clone()], now), Look::Quiet);
        let found = vec![over, row("b", Some(1.0)), row("c", Some(60.0)), row("d", None)];
        assert_eq!(leaders().decide(found.clone(), now), Look::Leads(leader("d", false)));
        let found = [&found[..3], &[row("e", Some(33.0))]].concat();
        assert_eq!(leaders().decide(found, now), Look::Wait(Duration::from_secs(2), leader("e", true)));
    }

    /// A lease that ends later than its holder can have requested is watched before the lock is
    /// taken, and once more under it.
    #[test]
    fn a_doubtful_lease_is_watched_only_once() {
        let now = Instant::now();
        let mut leaders = leaders();
        let doubtful = Row { expires_in: 3_600.0, ..row("a", None) };
        let found = leaders.decide(vec![doubtful.clone()], now);
        assert_eq!(found, Look::Wait(Duration::from_secs(15), leader("a", false)));
        let later = now + Duration::from_secs(15);
        for _ in 0..2 {
            assert_eq!(leaders.decide(vec![doubtful.clone()], later), Look::Quiet);
        }
        let renewed = Row { lease_until: String::from("u"), ..doubtful };
        assert_eq!(leaders.decide(vec![renewed], later), Look::Leads(leader("a", false)));
    }
}
