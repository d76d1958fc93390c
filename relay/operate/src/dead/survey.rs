//! The number of dead or retrying messages that match a filter, and their causes.

use std::collections::BTreeMap;

use outbox_log::ExceptionState;
use serde::Serialize;
use time::OffsetDateTime;

use super::filter::Filter;
use crate::cause::signature;
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;
use crate::turns::in_turns;

/// A number of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Total {
    /// The number.
    pub number: u64,
    /// Whether there are or may be more.
    pub is_at_least: bool,
}

/// Messages of one topic whose errors differ only in their numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CauseGroup {
    /// The [`signature`] of their errors; empty without an error.
    pub cause: String,
    /// The beginning of one of these errors, with its numbers.
    pub example: String,
    /// Their topic or queue.
    pub topic: String,
    /// Their number.
    pub total: Total,
    /// The time since which the first of them waits.
    #[serde(serialize_with = "seconds::serialize")]
    pub first: OffsetDateTime,
    /// The time since which the last of them waits.
    #[serde(serialize_with = "seconds::serialize")]
    pub last: OffsetDateTime,
}

/// The messages that match a filter, as numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Surveyed {
    /// Their number.
    pub total: Total,
    /// Their causes, the most frequent first. Of many messages, only the first and last ones are
    /// examined, and the numbers are lower bounds.
    pub causes: Vec<CauseGroup>,
    /// The errors of places that do not answer; their messages are missing.
    #[serde(skip)]
    pub away: Vec<OperateError>,
}

/// Counts the dead or retrying messages that match a filter, and groups them by topic and cause.
/// Dead letters are dead. Conditions on ids are ignored. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages. [`Surveyed::away`] has the
/// errors of unreachable databases.
pub async fn survey(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    state: ExceptionState,
) -> Result<Surveyed, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut counting = Counting { filter, total: Total::default(), groups: BTreeMap::new() };
    let mut away = places.away.clone();
    let outboxes = if filter.takes_outboxes() { &places.outboxes[..] } else { &[] };
    let looks = outboxes.iter().map(|place| of_outbox(place, filter, state)).collect();
    for (place, counted) in outboxes.iter().zip(in_turns(looks).await) {
        match counted {
            Ok(counted) => counting.add(counted),
            Err(error) => away.push(error.about(&place.pipeline)),
        }
    }
    let takes_letters = filter.takes_inboxes() && state == ExceptionState::Dead;
    let inboxes = places.distinct_inboxes().map(|(_, place)| place);
    let inboxes: Vec<&InboxPlace> =
        inboxes.filter(|place| takes_letters && filter.takes_place(place)).collect();
    let looks = inboxes.iter().map(|place| of_inbox(place, filter)).collect();
    for (place, counted) in inboxes.iter().zip(in_turns(looks).await) {
        match counted {
            Ok(counted) => counting.add(counted),
            Err(error) => away.push(error.about(place.name())),
        }
    }
    Ok(counting.done(away))
}

/// One group of a place.
struct Part {
    topic: String,
    error: String,
    count: u64,
    first: OffsetDateTime,
    last: OffsetDateTime,
}

/// The numbers of one place.
struct Counted {
    count: u64,
    is_at_least: bool,
    is_sample: bool,
    parts: Vec<Part>,
}

async fn of_outbox(
    place: &OutboxPlace,
    filter: &Filter,
    state: ExceptionState,
) -> Result<Counted, OperateError> {
    let found = place.desk().await.survey(state, &filter.of_outbox(None)).await?;
    let parts = found.groups.into_iter().map(|group| Part {
        topic: group.topic,
        error: group.error.unwrap_or_default(),
        count: group.count,
        first: group.first,
        last: group.last,
    });
    Ok(Counted {
        count: found.count,
        is_at_least: found.is_at_least,
        is_sample: found.is_sample,
        parts: parts.collect(),
    })
}

async fn of_inbox(place: &InboxPlace, filter: &Filter) -> Result<Counted, OperateError> {
    let found = place.database.survey(&filter.of_inbox(place, None)).await?;
    let parts = found.groups.into_iter().map(|group| Part {
        topic: group.topic,
        error: group.error,
        count: group.count,
        first: group.first,
        last: group.last,
    });
    Ok(Counted {
        count: found.count,
        is_at_least: found.is_at_least,
        is_sample: found.is_sample,
        parts: parts.collect(),
    })
}

struct Counting<'a> {
    filter: &'a Filter,
    total: Total,
    /// By cause and topic.
    groups: BTreeMap<(String, String), CauseGroup>,
}

impl Counting<'_> {
    /// Adds the numbers of a place. The database cannot compare signatures: if it also found errors
    /// with a different signature, only the matching errors of the sample are counted.
    fn add(&mut self, counted: Counted) {
        let (mut taken, mut refused) = (0, false);
        for part in counted.parts {
            let error = Some(part.error.as_str()).filter(|error| !error.is_empty());
            if !self.filter.takes_beginning(error) {
                refused = true;
                continue;
            }
            taken += part.count;
            self.group(part, counted.is_sample);
        }
        let total = if refused {
            Total { number: taken, is_at_least: counted.is_sample }
        } else {
            Total { number: counted.count, is_at_least: counted.is_at_least }
        };
        self.total.number += total.number;
        self.total.is_at_least |= total.is_at_least;
    }

    fn group(&mut self, part: Part, is_sample: bool) {
        let Part { topic, error, count, first, last } = part;
        let cause = signature(&error);
        let group = self.groups.entry((cause.clone(), topic.clone())).or_insert_with(|| CauseGroup {
            cause,
            example: error.clone(),
            topic,
            total: Total::default(),
            first,
            last,
        });
        group.total.number += count;
        group.total.is_at_least |= is_sample;
        group.first = group.first.min(first);
        group.last = group.last.max(last);
        // The first of them, so that the answer does not change from call to call.
        if error < group.example {
            group.example = error;
        }
    }

    fn done(self, away: Vec<OperateError>) -> Surveyed {
        let mut causes: Vec<CauseGroup> = self.groups.into_values().collect();
        causes.sort_by_key(|group| std::cmp::Reverse(group.total.number));
        Surveyed { total: self.total, causes, away }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(error: &str, count: u64, at: i64) -> Part {
        let at = OffsetDateTime::from_unix_timestamp(at).unwrap();
        Part { topic: String::from("orders"), error: error.to_owned(), count, first: at, last: at }
    }

    fn counted(filter: &Filter, count: u64, is_sample: bool) -> Surveyed {
        let mut counting = Counting { filter, total: Total::default(), groups: BTreeMap::new() };
        let parts =
            vec![part("row 1 is gone", 2, 30), part("no route", 3, 20), part("row 22 is gone", 5, 10)];
        counting.add(Counted { count, is_at_least: false, is_sample, parts });
        counting.done(Vec::new())
    }

    #[test]
    fn errors_that_differ_in_numbers_are_one_cause() {
        let found = counted(&Filter::default(), 10, false);
        let causes: Vec<_> = found.causes.iter().map(|it| (it.cause.as_str(), it.total.number)).collect();
        assert_eq!(causes, [("row # is gone", 7), ("no route", 3)]);
        let gone = &found.causes[0];
        assert_eq!((gone.first.unix_timestamp(), gone.last.unix_timestamp()), (10, 30));
        assert_eq!(gone.example, "row 1 is gone");
        assert_eq!(found.total, Total { number: 10, is_at_least: false });
    }

    #[test]
    fn a_sample_gives_lower_bounds_of_causes_and_the_whole_number() {
        let found = counted(&Filter::default(), 200_000, true);
        assert_eq!(found.total, Total { number: 200_000, is_at_least: false });
        assert!(found.causes.iter().all(|cause| cause.total.is_at_least));
    }

    #[test]
    fn errors_that_only_look_alike_are_not_counted() {
        let filter = Filter { error: Some(String::from("row # is")), ..Filter::default() };
        assert_eq!(counted(&filter, 10, false).total, Total { number: 7, is_at_least: false });
        assert_eq!(counted(&filter, 200_000, true).total, Total { number: 7, is_at_least: true });
    }
}
