//! How the consumers of an inbox are doing, as far as its tables tell.

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;

use crate::day;
use crate::dialect::Dialect;
use crate::inbox::Inbox;
use crate::minutes::Counts;
use crate::store_error::StoreError;

/// So many rows of each kind are counted at most: the count stays cheap whatever the traffic.
pub const ACTIVITY_COUNTED_MAX: u32 = 200_000;

/// One consumer of an inbox.
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
    /// Deliveries that its processes counted within the period. [`applied`](Self::applied) goes by
    /// rows, and by the time at which messages were made.
    pub counted: Counts,
}

impl Activity {
    /// Of the deliveries that its processes counted, how many were duplicates: from 0 to 1; nothing
    /// when none was counted.
    #[must_use]
    pub fn duplicate_rate(&self) -> Option<f64> {
        let Counts { applied, duplicates } = self.counted;
        let all = applied.saturating_add(duplicates);
        (all > 0).then(|| duplicates as f64 / all as f64)
    }
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
        let since = OffsetDateTime::now_utc() - period;
        let from = day::floor(since);
        let failed = StoreError::during("count what consumers did");
        let rows = DB::activity(&mut connection, self.statements(), from, ACTIVITY_COUNTED_MAX).await;
        let mut all = by_consumer(rows.map_err(failed)?);
        add_counted(&mut all, self.counts(&mut connection, since).await?);
        Ok(all.into_values().collect())
    }
}

fn by_consumer([applied, failing, dead]: ActivityRows) -> BTreeMap<String, Activity> {
    let mut all = BTreeMap::new();
    let mut set = |rows: Vec<ActivityRow>, set: fn(&mut Activity, u64, Option<OffsetDateTime>)| {
        for (consumer, count, at) in rows {
            set(of(&mut all, consumer), count.unsigned_abs(), at);
        }
    };
    set(applied, |it, count, at| (it.applied, it.last_applied_at) = (count, at));
    set(failing, |it, count, at| (it.retrying, it.failing_since) = (count, at));
    set(dead, |it, count, at| (it.dead, it.dead_since) = (count, at));
    all
}

/// One that had only duplicates is listed, too.
fn add_counted(all: &mut BTreeMap<String, Activity>, counted: Vec<(String, i64, i64)>) {
    for (consumer, applied, duplicates) in counted {
        of(all, consumer).counted =
            Counts { applied: applied.unsigned_abs(), duplicates: duplicates.unsigned_abs() };
    }
}

/// The activity of a consumer, which may be the first that is known of it.
fn of(all: &mut BTreeMap<String, Activity>, consumer: String) -> &mut Activity {
    all.entry(consumer.clone()).or_insert_with(|| Activity { consumer, ..Activity::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_only_fails_is_listed_too() {
        let at = Some(OffsetDateTime::UNIX_EPOCH);
        let rows = [vec![("b".into(), 3, at)], vec![("a".into(), 1, at)], vec![("b".into(), 2, None)]];
        let mut all = by_consumer(rows);
        add_counted(&mut all, vec![("b".into(), 3, 1), ("c".into(), 0, 5)]);
        let told: Vec<_> =
            all.values().map(|it| (&it.consumer[..], it.applied, it.retrying, it.dead)).collect();
        assert_eq!(told, [("a", 0, 1, 0), ("b", 3, 0, 2), ("c", 0, 0, 0)]);
        let rates: Vec<_> = all.values().map(Activity::duplicate_rate).collect();
        assert_eq!(rates, [None, Some(0.25), Some(1.0)]);
    }
}
