//! Activity of the consumers of an inbox, as its tables show it.

mod counts;
mod minutes;

use std::collections::BTreeMap;
use std::time::Duration;

use message::back;
use time::OffsetDateTime;

use crate::day;
use crate::dialect::Dialect;
use crate::inbox::Inbox;
use crate::store_error::StoreError;
pub use counts::Counts;
pub(crate) use counts::{ActivityRow, ActivityRows, ConsumerCounts, LetterRow, Tally};
pub(crate) use minutes::STORE_EVERY;

/// Maximum number of rows counted: of applied messages in all, and of a consumer's failures and
/// dead letters. So the count stays cheap under any traffic.
pub const ACTIVITY_COUNTED_MAX: u32 = 20_000;

/// One consumer of an inbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Activity {
    /// The consumer.
    pub consumer: String,
    /// Messages that took effect within the requested period: those that its processes counted, or
    /// the rows of messages made within the period, whichever are more. A process that is killed
    /// loses its last counts, and direct calls of the guard are not counted; rows are counted up to
    /// a limit, and not those of messages that were made before the period.
    pub applied: u64,
    /// When a message last took effect, even before the period: up to one day ago, which is how
    /// long counts are kept. If only the counts show it, it is exact to the minute.
    pub last_applied_at: Option<OffsetDateTime>,
    /// Messages whose handler failed and that will be retried.
    pub retrying: u64,
    /// The earliest first failure among them.
    pub failing_since: Option<OffsetDateTime>,
    /// Open dead letters, without the held ones.
    pub dead: u64,
    /// When the oldest of them was dead-lettered.
    pub dead_since: Option<OffsetDateTime>,
    /// Messages that are held behind a dead letter of their key, and follow it automatically.
    pub held: u64,
    /// Deliveries that its processes counted within the period.
    pub counted: Counts,
}

impl Activity {
    /// Returns the share of duplicates among the deliveries that its processes counted, from 0 to
    /// 1; `None` when none was counted.
    #[must_use]
    pub fn duplicate_rate(&self) -> Option<f64> {
        let Counts { applied, duplicates } = self.counted;
        let all = applied.saturating_add(duplicates);
        (all > 0).then(|| duplicates as f64 / all as f64)
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Counts, for each consumer, the messages that took effect within `period`, and the messages
    /// that wait. Returns the consumers sorted by name, with those that were idle in this period
    /// but counted a message within the last day. Reads at most 20,000 rows of applied
    /// messages, and of the failures and dead letters of each consumer. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn activity(&self, period: Duration) -> Result<Vec<Activity>, StoreError> {
        let what = "count the work of consumers";
        let counting = async {
            let mut connection = self.acquire(what).await?;
            let since = back(OffsetDateTime::now_utc(), period);
            let from = day::floor(since);
            let limit = self.options().call_timeout;
            let rows = self.tables().activity(&mut connection, from, ACTIVITY_COUNTED_MAX, limit).await;
            let mut all = by_consumer(rows.map_err(StoreError::during(what))?);
            add_counted(&mut all, self.counts(&mut connection, since).await?);
            Ok(all.into_values().collect())
        };
        self.in_time(what, counting).await
    }
}

fn by_consumer(rows: ActivityRows) -> BTreeMap<String, Activity> {
    let mut all = BTreeMap::new();
    let mut set = |rows: Vec<ActivityRow>, set: fn(&mut Activity, u64, Option<OffsetDateTime>)| {
        for ActivityRow { consumer, count, at } in rows {
            set(of(&mut all, consumer), count, at);
        }
    };
    set(rows.applied, |it, count, at| (it.applied, it.last_applied_at) = (count, at));
    set(rows.failing, |it, count, at| (it.retrying, it.failing_since) = (count, at));
    for LetterRow { consumer, dead, dead_since, held } in rows.letters {
        let activity = of(&mut all, consumer);
        activity.dead = dead;
        activity.dead_since = dead_since;
        activity.held = held;
    }
    all
}

/// Adds the counted deliveries, including those of consumers that had only duplicates. Both the
/// counts and the rows are less than what took effect, so the larger number is closer.
fn add_counted(all: &mut BTreeMap<String, Activity>, counted: Vec<ConsumerCounts>) {
    for ConsumerCounts { consumer, counts, last_applied_at } in counted {
        let activity = of(all, consumer);
        activity.counted = counts;
        activity.applied = activity.applied.max(counts.applied);
        activity.last_applied_at = activity.last_applied_at.max(last_applied_at);
    }
}

/// Returns the entry of a consumer; creates it when it is missing.
fn of(all: &mut BTreeMap<String, Activity>, consumer: String) -> &mut Activity {
    all.entry(consumer.clone()).or_insert_with(|| Activity { consumer, ..Activity::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_only_fails_is_listed_too() {
        let at = Some(OffsetDateTime::UNIX_EPOCH);
        let row = |consumer: &str, count, at| vec![ActivityRow { consumer: consumer.into(), count, at }];
        let letters = vec![LetterRow { consumer: "b".into(), dead: 2, dead_since: at, held: 7 }];
        let rows = ActivityRows { applied: row("b", 3, at), failing: row("a", 1, at), letters };
        let mut all = by_consumer(rows);
        let counted = |consumer: &str, applied, duplicates| ConsumerCounts {
            consumer: consumer.into(),
            counts: Counts { applied, duplicates },
            last_applied_at: None,
        };
        add_counted(&mut all, vec![counted("b", 3, 1), counted("c", 0, 5)]);
        let told: Vec<_> =
            all.values().map(|it| (&it.consumer[..], it.applied, it.retrying, it.dead)).collect();
        assert_eq!(told, [("a", 0, 1, 0), ("b", 3, 0, 2), ("c", 0, 0, 0)]);
        assert_eq!((all["b"].dead_since, all["b"].held), (at, 7));
        let rates: Vec<_> = all.values().map(Activity::duplicate_rate).collect();
        assert_eq!(rates, [None, Some(0.25), Some(1.0)]);
    }

    /// Goal: a consumer that applies more than the rows that are read, or messages from before the
    /// period, is not shown as slow or idle. Oracle: number and time for counts that are ahead of
    /// the rows, and behind them.
    #[test]
    fn what_was_applied_is_told_by_rows_or_counts_whichever_are_ahead() {
        let at = |minutes: i64| Some(OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(minutes));
        let row = |consumer: &str, count, at| ActivityRow { consumer: consumer.into(), count, at };
        let applied = vec![row("fast", 20_000, at(3)), row("by hand", 7, at(59))];
        let mut all = by_consumer(ActivityRows { applied, failing: Vec::new(), letters: Vec::new() });
        let counted = |consumer: &str, applied, last_applied_at| ConsumerCounts {
            consumer: consumer.into(),
            counts: Counts { applied, duplicates: 0 },
            last_applied_at,
        };
        let counts = vec![
            counted("fast", 3_600_000, at(58)),
            counted("behind", 5, at(57)),
            counted("by hand", 2, at(9)),
        ];
        add_counted(&mut all, counts);
        let told: Vec<_> =
            all.values().map(|it| (&it.consumer[..], it.applied, it.last_applied_at)).collect();
        assert_eq!(told, [("behind", 5, at(57)), ("by hand", 7, at(59)), ("fast", 3_600_000, at(58))]);
    }
}
