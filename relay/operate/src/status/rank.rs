//! Ranks: which pipelines, consumers and topics an operator should look at first. Pure.

use std::cmp::Reverse;
use std::time::Duration;

use outbox_log::ExceptionState::{self, Dead, Held, Retrying};

use super::{PipelineStatus, Symptom, Wait};
use crate::lag::LagLine;

/// The severity of a condition, most severe first: conditions that need an operator before those
/// that pass, then by their kind, then those that have lasted longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Severity {
    passes: bool,
    kind: Symptom,
    lasts: Reverse<Duration>,
}

impl Wait {
    /// Returns its severity, by which the conditions of a pipeline or a consumer are sorted.
    #[must_use]
    pub fn severity(&self) -> Severity {
        Severity {
            passes: !self.needs_operator(),
            kind: kind_of(self.symptom),
            lasts: Reverse(self.lasts.unwrap_or_default()),
        }
    }
}

/// The rank of a pipeline, a consumer or a topic, the worst first.
///
/// Those that need an operator come before those that continue by themselves, and those that are
/// fine are last. Within each of the three: by the worst condition, then by the number of its
/// messages, then the longest first, then pipelines before consumers, then by name. Only dead
/// messages count exactly: others come and go, and a list that is sorted by their exact number
/// would change its order while it is read. For the same reason durations count in whole minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    is_fine: bool,
    passes: bool,
    /// The kind of the worst condition.
    kind: Option<Symptom>,
    messages: Reverse<u64>,
    minutes: Reverse<u64>,
    is_consumer: bool,
    name: &'a str,
    /// The pipeline of a topic: several may have the same topics.
    pipeline: &'a str,
}

impl<'a> Rank<'a> {
    /// Returns the rank of a pipeline with these conditions, whose order does not matter.
    #[must_use]
    pub fn of_pipeline(status: &'a PipelineStatus, waits: &[Wait]) -> Self {
        Self::of(&status.pipeline, waits, status.waiting_max())
    }

    /// Returns the rank of a consumer with these conditions, whose order does not matter.
    #[must_use]
    pub fn of_consumer(name: &'a str, waits: &[Wait]) -> Self {
        Self { is_consumer: true, ..Self::of(name, waits, None) }
    }

    /// Returns the rank of a topic, by the worst condition of its messages.
    #[must_use]
    pub fn of_topic(line: &'a LagLine) -> Self {
        let parked = |state: ExceptionState| line.parked.get(&state).copied().unwrap_or_default();
        let waiting = line.unread + parked(Held) + parked(Retrying);
        let kind = match &line.paused {
            Some(_) if waiting > 0 => Some(Symptom::Paused),
            _ if parked(Dead) > 0 => Some(Symptom::Dead),
            _ if parked(Held) > 0 => Some(Symptom::Held),
            _ if parked(Retrying) > 0 => Some(Symptom::Retrying),
            _ => None,
        };
        let messages = if kind == Some(Symptom::Dead) { parked(Dead) } else { magnitude(waiting) };
        let seconds = line.oldest_age_seconds.map_or(0, |age| age.max(0.0) as u64);
        Self {
            is_fine: kind.is_none(),
            passes: !matches!(kind, Some(Symptom::Paused | Symptom::Dead)),
            kind,
            messages: Reverse(messages),
            minutes: Reverse(seconds / 60),
            is_consumer: false,
            name: &line.topic,
            pipeline: &line.pipeline,
        }
    }

    /// Returns the same rank for something that needs an operator whatever its conditions are.
    /// Without a condition, it is as bad as a pipeline without a leader.
    #[must_use]
    pub fn needing_operator(self) -> Self {
        let kind = self.kind.or(Some(Symptom::NoLeader));
        Self { is_fine: false, passes: false, kind, ..self }
    }

    /// Returns the rank of something with these conditions. `waiting_max` is the number of messages
    /// for a condition without one of its own.
    fn of(name: &'a str, waits: &[Wait], waiting_max: Option<u64>) -> Self {
        let worst = waits.iter().min_by_key(|wait| wait.severity());
        let messages = |worst: &Wait| match worst.count {
            Some(count) if kind_of(worst.symptom) == Symptom::Dead => count.number,
            Some(count) => magnitude(count.number),
            None => magnitude(waiting_max.unwrap_or_default()),
        };
        let lasts = worst.and_then(|worst| worst.lasts).unwrap_or_default();
        Self {
            is_fine: worst.is_none(),
            passes: worst.is_none_or(|worst| !worst.needs_operator()),
            kind: worst.map(|worst| kind_of(worst.symptom)),
            messages: Reverse(worst.map_or(0, messages)),
            minutes: Reverse(lasts.as_secs() / 60),
            is_consumer: false,
            name,
            pipeline: "",
        }
    }
}

/// Returns the kind of a condition for comparisons between pipelines and consumers: dead messages
/// of an outbox and of an inbox are equally bad, and a consumer that applies nothing is worse.
fn kind_of(symptom: Symptom) -> Symptom {
    match symptom {
        Symptom::ConsumerStalled => Symptom::Behind,
        Symptom::ConsumerDead => Symptom::Dead,
        Symptom::ConsumerHeld => Symptom::Held,
        Symptom::ConsumerFails => Symptom::Retrying,
        symptom => symptom,
    }
}

/// Returns the number of binary digits of a number.
fn magnitude(number: u64) -> u64 {
    number.checked_ilog2().map_or(0, |log| u64::from(log) + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ExceptionState::Scheduled;
    use outbox_log::PauseScope;
    use time::OffsetDateTime;

    use super::super::{Count, PipelineState};
    use super::*;
    use crate::pause::PauseLine;

    /// Returns a pipeline that leads, with messages in one state for this many seconds.
    fn parked(name: &str, state: ExceptionState, number: u64, seconds: f64) -> PipelineStatus {
        PipelineStatus {
            state: PipelineState::Leading,
            exceptions: BTreeMap::from([(state, number)]),
            exceptions_age_seconds: BTreeMap::from([(state, seconds)]),
            ..PipelineStatus::of(name, None, None)
        }
    }

    fn rank(status: &PipelineStatus) -> Rank<'_> {
        Rank::of_pipeline(status, &status.waits())
    }

    fn sorted(all: &[PipelineStatus]) -> Vec<&str> {
        let mut sorted: Vec<&PipelineStatus> = all.iter().collect();
        sorted.sort_by(|one, other| rank(one).cmp(&rank(other)));
        sorted.into_iter().map(|status| status.pipeline.as_str()).collect()
    }

    /// Goal: the pipeline that most needs an operator is first. Oracle: the order of pipelines that
    /// differ in one criterion each.
    #[test]
    fn the_pipeline_that_most_needs_an_operator_is_first() {
        let state = |name: &str, state| PipelineStatus { state, ..parked(name, Dead, 0, 0.0) };
        let all = [
            state("quiet", PipelineState::Leading),
            state("also-quiet", PipelineState::Leading),
            parked("again", Retrying, 5, 600.0),
            parked("held", Held, 5, 600.0),
            state("away", PipelineState::Unknown),
            parked("young", Dead, 1, 8.0),
            parked("old", Dead, 1, 130.0),
            PipelineStatus { leaderless_seconds: Some(60.0), ..state("alone", PipelineState::Expired) },
        ];
        assert_eq!(sorted(&all), ["away", "alone", "old", "young", "held", "again", "also-quiet", "quiet"]);
    }

    /// Goal: the pipeline with the most dead messages stays first after a requeue that failed,
    /// which makes its messages die anew, and messages that only wait do not change the order while
    /// it is read. Oracle: the order by number, by magnitude, by minutes and by name.
    #[test]
    fn dead_messages_are_counted_exactly_and_others_by_their_magnitude() {
        let dead = [
            parked("few", Dead, 60, 65.4),
            parked("some", Dead, 61, 1.0),
            parked("many", Dead, 20_000, 65.1),
            parked("old", Dead, 1, 130.0),
        ];
        assert_eq!(sorted(&dead), ["many", "some", "few", "old"]);
        let waits = [
            parked("more", Retrying, 45, 60.0),
            parked("older", Retrying, 44, 600.0),
            parked("most", Retrying, 90, 1.0),
            parked("alike", Retrying, 40, 119.0),
        ];
        assert_eq!(sorted(&waits), ["most", "older", "alike", "more"]);
        // A condition of the whole pipeline keeps everything that waits.
        let alone = |name: &str, waiting| PipelineStatus {
            state: PipelineState::Expired,
            oldest_pending_id: Some(7),
            backlog_entries_max: Some(waiting),
            ..PipelineStatus::of(name, None, None)
        };
        assert_eq!(sorted(&[alone("a-few", 3), alone("lots", 3_000)]), ["lots", "a-few"]);
    }

    /// Goal: the pause that has lasted longest is the reason that is shown first, whatever the
    /// order of their names is. Oracle: the order of conditions, and the minutes of the rank.
    #[test]
    fn of_several_conditions_the_worst_counts() {
        let wait = |symptom, passes, minutes: u64| Wait {
            symptom,
            why: String::new(),
            count: Some(Count { number: 5, is_at_least: false }),
            cause: None,
            lasts: Some(Duration::from_secs(60 * minutes)),
            passes,
        };
        let mut waits = [
            wait(Symptom::Behind, true, 90),
            wait(Symptom::Dead, false, 1),
            wait(Symptom::Paused, false, 1),
            wait(Symptom::Paused, false, 7),
        ];
        let status = PipelineStatus::of("orders", None, None);
        let before = Rank::of_pipeline(&status, &waits);
        waits.sort_by_key(Wait::severity);
        assert_eq!(before, Rank::of_pipeline(&status, &waits));
        assert_eq!((before.kind, before.minutes), (Some(Symptom::Paused), Reverse(7)));
        let found: Vec<_> = waits.iter().map(|wait| (wait.symptom, wait.lasts)).collect();
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        let expected = [
            (Symptom::Paused, minutes(7)),
            (Symptom::Paused, minutes(1)),
            (Symptom::Dead, minutes(1)),
            (Symptom::Behind, minutes(90)),
        ];
        assert_eq!(found, expected);
    }

    /// Goal: many dead letters of a consumer are not below a few dead messages of a pipeline, and a
    /// consumer that applies nothing is above both.
    #[test]
    fn consumers_and_pipelines_have_one_order() {
        let wait = |symptom, number| Wait {
            symptom,
            why: String::new(),
            count: Some(Count { number, is_at_least: false }),
            cause: None,
            lasts: None,
            passes: false,
        };
        let consumer = |symptom, number| Rank::of_consumer("billing", &[wait(symptom, number)]);
        let status = PipelineStatus::of("shipping", None, None);
        let pipeline = |number| Rank::of_pipeline(&status, &[wait(Symptom::Dead, number)]);
        assert!(consumer(Symptom::ConsumerDead, 2_000) < pipeline(5));
        assert!(pipeline(5) < consumer(Symptom::ConsumerDead, 5), "pipelines come first");
        assert!(consumer(Symptom::ConsumerStalled, 1) < pipeline(2_000));
        assert!(pipeline(1) < consumer(Symptom::ConsumerHeld, 9));
        assert!(pipeline(1) < Rank::of_consumer("a", &[]));
    }

    #[test]
    fn a_reason_beside_the_conditions_needs_an_operator() {
        let fine = parked("fine", Dead, 0, 0.0);
        let retries = parked("retries", Retrying, 7, 60.0);
        let dead = parked("dead", Dead, 7, 60.0);
        assert!(rank(&fine) > rank(&retries) && rank(&retries) > rank(&dead));
        assert!(rank(&fine).needing_operator() < rank(&dead), "as without a leader");
        assert!(rank(&retries).needing_operator() < rank(&retries));
    }

    /// Returns a topic whose oldest message has waited for this many seconds.
    fn line(topic: &str, unread: u64, parked: &[(ExceptionState, u64)], seconds: f64) -> LagLine {
        LagLine {
            pipeline: String::from("orders"),
            topic: topic.to_owned(),
            unread,
            unread_is_at_least: false,
            parked: parked.iter().copied().collect(),
            oldest_age_seconds: Some(seconds),
            paused: None,
        }
    }

    /// Goal: the topic with the most dead messages is not below one that has only waited for
    /// longer. Oracle: the order of topics in each condition, and of two in the same one.
    #[test]
    fn the_worst_topic_is_first() {
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Pipeline,
            actor: String::from("bob"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let paused = |line: LagLine| LagLine { paused: Some(pause.clone()), ..line };
        let other = LagLine { pipeline: String::from("bills"), ..line("busy", 5_000, &[], 900.0) };
        let mut lines = [
            line("busy", 5_000, &[], 900.0),
            other,
            paused(line("quiet", 0, &[(Scheduled, 3)], 800.0)),
            line("retried", 0, &[(Retrying, 7)], 700.0),
            line("held", 0, &[(Held, 44), (Retrying, 1)], 60.0),
            line("longer", 0, &[(Held, 45)], 600.0),
            line("few", 0, &[(Dead, 1), (Held, 900)], 500.0),
            line("ship", 0, &[(Dead, 102_009)], 8.0),
            paused(line("refunds", 2, &[], 1.0)),
        ];
        lines.sort_by(|one, other| Rank::of_topic(one).cmp(&Rank::of_topic(other)));
        let topics: Vec<&str> = lines.iter().map(|line| line.topic.as_str()).collect();
        assert_eq!(topics, ["refunds", "ship", "few", "longer", "held", "retried", "busy", "busy", "quiet"]);
        assert_eq!(lines[6].pipeline, "bills");
        // Seconds are no order.
        assert!(Rank::of_topic(&line("a", 7, &[], 3.0)) < Rank::of_topic(&line("b", 7, &[], 59.0)));
    }
}
