//! Entries that are not published yet, by topic.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ExceptionState;

/// Maximum unread entries that are counted. This keeps the count cheap whatever the backlog.
pub const UNREAD_COUNTED_MAX: u32 = 100_000;

/// The entries of one topic that are not published yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicLag {
    /// The topic.
    pub topic: String,
    /// Entries that the relay has not passed, counted up to [`UNREAD_COUNTED_MAX`] over all topics.
    pub unread: u64,
    /// Number of parked entries by state.
    pub parked: BTreeMap<ExceptionState, u64>,
    /// How long the oldest entry has waited to be published: unread, held and retrying ones since
    /// they were enqueued, scheduled ones since they were due.
    pub oldest: Option<Duration>,
}

/// Entries of one topic and state as the database counts them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lagging {
    pub(crate) topic: String,
    /// The state of parked entries; `None` for those that are not read yet.
    pub(crate) state: Option<String>,
    /// Whether they are scheduled and due.
    pub(crate) is_due: bool,
    pub(crate) entries: u64,
    /// Seconds that the first of them has waited.
    pub(crate) longest: f64,
}

/// Sums up the rows by topic. Leaves out states that this build does not know.
pub(crate) fn by_topic(groups: Vec<Lagging>) -> Vec<TopicLag> {
    let mut topics: BTreeMap<String, TopicLag> = BTreeMap::new();
    for Lagging { topic, state, is_due, entries: count, longest } in groups {
        let lag = topics.entry(topic.clone()).or_insert_with(|| TopicLag { topic, ..TopicLag::default() });
        let waits = match state.as_deref().map(str::parse::<ExceptionState>) {
            None => {
                lag.unread += count;
                true
            }
            Some(Ok(state)) => {
                *lag.parked.entry(state).or_default() += count;
                is_due || matches!(state, ExceptionState::Held | ExceptionState::Retrying)
            }
            Some(Err(_)) => false,
        };
        if waits {
            let age = Duration::try_from_secs_f64(longest.max(0.0)).unwrap_or_default();
            lag.oldest = lag.oldest.max(Some(age));
        }
    }
    topics.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_to_leave_has_an_age() {
        let row = |topic: &str, state: Option<&str>, entries, longest| {
            let (topic, state) = (topic.to_owned(), state.map(str::to_owned));
            Lagging { topic, state, is_due: false, entries, longest }
        };
        let due = |age| Lagging { is_due: true, ..row("c", Some("scheduled"), 1, age) };
        let lags = by_topic(vec![
            row("b", Some("dead"), 3, 900.0),
            row("b", None, 2, 5.0),
            row("a", Some("held"), 4, 60.0),
            row("a", Some("retrying"), 1, 70.0),
            row("a", Some("unknown"), 1, 80.0),
            row("c", Some("scheduled"), 4, -9.0),
            due(30.0),
        ]);
        assert_eq!(lags.iter().map(|lag| lag.topic.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(
            (lags[2].parked[&ExceptionState::Scheduled], lags[2].oldest),
            (5, Some(Duration::from_secs(30)))
        );
        assert_eq!((lags[0].unread, lags[0].oldest), (0, Some(Duration::from_secs(70))));
        assert_eq!(
            lags[0].parked,
            BTreeMap::from([(ExceptionState::Held, 4), (ExceptionState::Retrying, 1)])
        );
        assert_eq!((lags[1].unread, lags[1].oldest), (2, Some(Duration::from_secs(5))));
    }
}
