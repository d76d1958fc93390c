//! How the consumers of an inbox are doing, as far as its tables tell.

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;

use crate::day;
use crate::dialect::Dialect;
use crate::inbox::Inbox;
use crate::store_error::StoreError;

/// So many rows of each kind are counted at most: the count stays cheap whatever the traffic.
pub const ACTIVITY_COUNTED_MAX: u32 = 200_000;

/// One consumer of an inbox. Duplicates are not stored: its process counts them in its metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Activity {
    /// The consumer.
    pub consumer: String,
    /// Messages that took effect and were made within the period that was asked for.
    pub applied: u64,
    /// When the last of them took effect.
    pub last_applied_at: Option<OffsetDateTime>,
    /// Messages whose handler failed and that are tried again.
    pub retrying: u64,
    /// When the first of those failed first.
    pub failing_since: Option<OffsetDateTime>,
    /// Dead letters that are open.
    pub dead: u64,
    /// When the first of those died.
    pub dead_since: Option<OffsetDateTime>,
}

/// A row of a count: consumer, how many, and the first or last time.
pub(crate) type ActivityRow = (String, i64, Option<OffsetDateTime>);

/// The three counts: applied, failing, dead.
pub(crate) type ActivityRows = [Vec<ActivityRow>; 3];

impl<DB: Dialect> Inbox<DB> {
    /// Counts what each consumer applied of the messages that were made within `period`, and what
    /// waits, in the order of names; at most [`ACTIVITY_COUNTED_MAX`] rows of each kind.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn activity(&self, period: Duration) -> Result<Vec<Activity>, StoreError> {
        let mut connection = self.acquire("count what consumers did").await?;
        let from = day::floor(OffsetDateTime::now_utc() - period);
        DB::activity(&mut connection, self.statements(), from, ACTIVITY_COUNTED_MAX)
            .await
            .map(by_consumer)
            .map_err(StoreError::during("count what consumers did"))
    }
}

fn by_consumer([applied, failing, dead]: ActivityRows) -> Vec<Activity> {
    let mut all: BTreeMap<String, Activity> = BTreeMap::new();
    let mut of = |rows: Vec<ActivityRow>, set: fn(&mut Activity, u64, Option<OffsetDateTime>)| {
        for (consumer, count, at) in rows {
            let activity =
                all.entry(consumer.clone()).or_insert_with(|| Activity { consumer, ..Activity::default() });
            set(activity, count.unsigned_abs(), at);
        }
    };
    of(applied, |it, count, at| (it.applied, it.last_applied_at) = (count, at));
    of(failing, |it, count, at| (it.retrying, it.failing_since) = (count, at));
    of(dead, |it, count, at| (it.dead, it.dead_since) = (count, at));
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_only_fails_is_listed_too() {
        let at = Some(OffsetDateTime::UNIX_EPOCH);
        let rows = [vec![("b".into(), 3, at)], vec![("a".into(), 1, at)], vec![("b".into(), 2, None)]];
        let all = by_consumer(rows);
        let told: Vec<_> =
            all.iter().map(|it| (&it.consumer[..], it.applied, it.retrying, it.dead)).collect();
        assert_eq!(told, [("a", 0, 1, 0), ("b", 3, 0, 2)]);
    }
}
