//! Everything that is wrong, worst first. Pure.

use std::collections::{BTreeMap, BTreeSet};

use operate::OperateError;
use operate::cause::Cause;
use operate::consumers::{ConsumerLine, OwnConsumer};
use operate::status::{Count, PipelineStatus, Rank, Symptom, Wait};

use super::layout::count;
use super::observe::OwnConsumers;

/// A pipeline or a consumer, with everything that is wrong with it.
pub(crate) struct Subject<'a> {
    pub(crate) of: Of<'a>,
    /// Worst first.
    pub(crate) waits: Vec<Wait>,
    /// Why this process does not run the pipeline, if its database does not show it.
    pub(crate) own: Option<String>,
}

/// The kind of a [`Subject`].
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    Pipeline(&'a PipelineStatus),
    Consumer(OfConsumer<'a>),
}

/// A consumer, as far as it is known.
#[derive(Clone, Copy)]
pub(crate) struct OfConsumer<'a> {
    pub(crate) name: &'a str,
    /// By its inbox, if that is configured.
    pub(crate) line: Option<&'a ConsumerLine>,
    /// By this process, if it runs there.
    pub(crate) own: &'a [OwnConsumer],
}

impl<'a> Subject<'a> {
    pub(crate) fn pipeline(status: &'a PipelineStatus, own: Option<String>) -> Self {
        Self { of: Of::Pipeline(status), waits: sorted(status.waits()), own }
    }

    /// Takes a consumer. If the database of its inbox is among those that do not answer, nothing
    /// is known of it: consumers are queried less often than pipelines.
    pub(crate) fn consumer(line: &'a ConsumerLine, own: &'a [OwnConsumer], away: &BTreeSet<&str>) -> Self {
        let mut waits = line.waits();
        if away.contains(database(&line.location)) {
            waits = vec![Wait {
                symptom: Symptom::DatabaseAway,
                why: format!("the database {} of its inbox does not answer", line.location),
                count: None,
                cause: None,
                lasts: None,
                passes: true,
            }];
        }
        waits.extend(own.iter().filter_map(OwnConsumer::wait));
        let of = OfConsumer { name: &line.consumer, line: Some(line), own };
        Self { of: Of::Consumer(of), waits: sorted(waits), own: None }
    }

    /// Takes a consumer of this process whose inbox is not configured.
    fn own_consumer(name: &'a str, own: &'a [OwnConsumer]) -> Self {
        let waits = own.iter().filter_map(OwnConsumer::wait).collect();
        let of = OfConsumer { name, line: None, own };
        Self { of: Of::Consumer(of), waits: sorted(waits), own: None }
    }

    /// Returns the database of a pipeline or a consumer, if that is known.
    fn database(&self) -> Option<&'a str> {
        match self.of {
            Of::Pipeline(status) => status.location.as_deref(),
            Of::Consumer(consumer) => consumer.line.map(|line| line.location.as_str()),
        }
        .map(database)
    }

    pub(crate) fn name(&self) -> &'a str {
        match self.of {
            Of::Pipeline(status) => &status.pipeline,
            Of::Consumer(consumer) => consumer.name,
        }
    }

    /// Returns whether its database does not answer.
    fn is_away(&self) -> bool {
        match self.of {
            Of::Pipeline(status) => status.is_away(),
            Of::Consumer(_) => self.waits.iter().any(|wait| wait.symptom == Symptom::DatabaseAway),
        }
    }

    /// Returns whether nothing is known of its messages.
    fn is_unknown(&self) -> bool {
        match self.of {
            Of::Pipeline(status) => !status.state.is_known(),
            Of::Consumer(_) => self.is_away(),
        }
    }

    pub(crate) fn is_sick(&self) -> bool {
        !self.waits.is_empty() || self.own.is_some()
    }

    /// Returns whether an operator has to act.
    pub(crate) fn is_grave(&self) -> bool {
        self.own.is_some() || self.waits.iter().any(Wait::needs_operator)
    }

    /// Returns whether it needs attention, by the rule of the exit code of `relay status`.
    fn needs_attention(&self) -> bool {
        match self.of {
            Of::Pipeline(status) => self.own.is_some() || status.needs_attention(),
            Of::Consumer(_) => self.is_sick(),
        }
    }

    /// Returns the condition behind whose messages the held ones of a pipeline wait, if only one
    /// can hold them up: messages that are dead, or that are retried. A pause holds some as well.
    pub(crate) fn held_behind(&self) -> Option<Symptom> {
        let has = |symptom: Symptom| self.waits.iter().any(|wait| wait.symptom == symptom);
        if !has(Symptom::Held) || has(Symptom::Paused) {
            return None;
        }
        if has(Symptom::Dead) {
            return (!has(Symptom::Retrying)).then_some(Symptom::Dead);
        }
        has(Symptom::Retrying).then_some(Symptom::Retrying)
    }

    fn rank(&self) -> Rank<'a> {
        let rank = match self.of {
            Of::Pipeline(status) => Rank::of_pipeline(status, &self.waits),
            Of::Consumer(consumer) => Rank::of_consumer(consumer.name, &self.waits),
        };
        if self.own.is_some() { rank.needing_operator() } else { rank }
    }
}

/// Returns the consumers: those of inboxes, with what this process shows of them, and those that
/// only this process shows. If a consumer has several databases, the first one counts here.
pub(crate) fn consumers<'a>(
    lines: &'a [ConsumerLine],
    own: &'a OwnConsumers,
    away: &BTreeSet<&str>,
) -> Vec<Subject<'a>> {
    let mut left: BTreeMap<&str, &[OwnConsumer]> =
        own.iter().map(|(name, own)| (name.as_str(), own.as_slice())).collect();
    let mut subjects: Vec<Subject<'a>> = lines
        .iter()
        .map(|line| Subject::consumer(line, left.remove(line.consumer.as_str()).unwrap_or_default(), away))
        .collect();
    subjects.extend(left.into_iter().map(|(name, own)| Subject::own_consumer(name, own)));
    subjects
}

/// Sorts subjects by their ranks, the worst first; those that are fine are last. A requeue that
/// failed moves no card: the messages are as dead as before.
pub(crate) fn sort(subjects: &mut [Subject<'_>]) {
    subjects.sort_by(|one, other| one.rank().cmp(&other.rank()));
}

/// Returns the databases of pipelines that do not answer. One that refuses this user, or lacks the
/// tables, answers: it says nothing of the inboxes there.
pub(crate) fn away_of<'a>(pipelines: impl Iterator<Item = &'a PipelineStatus>) -> BTreeSet<&'a str> {
    let away = pipelines.filter(|status| status.is_away());
    away.filter_map(|status| status.location.as_deref()).map(database).collect()
}

/// Returns whether the error of an inbox is about a database that does not answer its pipelines
/// either.
pub(crate) fn is_told(error: &OperateError, away: &BTreeSet<&str>) -> bool {
    error.location().is_some_and(|location| away.contains(database(location)))
}

/// Returns a location without its schema.
fn database(location: &str) -> &str {
    location.split_once(", schema ").map_or(location, |(database, _)| database)
}

fn sorted(mut waits: Vec<Wait>) -> Vec<Wait> {
    waits.sort_by_key(Wait::severity);
    waits
}

/// Returns the words of a badge: `dead 2,009`.
pub(crate) fn badge_text(wait: &Wait) -> String {
    match wait.count {
        Some(Count { number, is_at_least }) => {
            let least = if is_at_least { "≥ " } else { "" };
            format!("{} {least}{}", wait.symptom.short(), count(number))
        }
        None => wait.symptom.short().to_owned(),
    }
}

/// A condition in words, with its reason or what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The condition itself: `2,009 messages are dead`.
    pub(crate) what: String,
    /// The reason, or what to do; for messages, their most frequent error.
    pub(crate) why: Option<String>,
}

/// Returns a condition in words.
pub(crate) fn told(wait: &Wait) -> Told {
    let Some(of) = wait.count else {
        return match wait.why.split_once(": ") {
            Some((what, why)) => Told { what: what.to_owned(), why: Some(why.to_owned()) },
            None => Told { what: wait.why.clone(), why: None },
        };
    };
    let (state, why) = match wait.symptom {
        Symptom::Held => {
            ("held", "by an earlier message with the same key, or because a topic is stopped, paused or busy")
        }
        Symptom::ConsumerHeld => ("held", "they follow the dead ones of their keys automatically"),
        Symptom::Retrying | Symptom::ConsumerFails => ("retrying", "tried again automatically"),
        _ => ("dead", "requeue or discard them"),
    };
    let least = if of.is_at_least { "≥ " } else { "" };
    let what = match of.number {
        1 => format!("{least}1 message is {state}"),
        number => format!("{least}{} messages are {state}", count(number)),
    };
    let why = match (of.number, wait.symptom) {
        (1, Symptom::ConsumerHeld) => String::from("it follows the dead ones of its key automatically"),
        (1, _) => why.replace("them", "it"),
        _ => why.to_owned(),
    };
    Told { what, why: Some(wait.cause.as_ref().map_or(why, of_cause)) }
}

/// Returns the most frequent error of messages: an example with its numbers where only these
/// differ.
fn of_cause(cause: &Cause) -> String {
    let is_one = cause.text == cause.example;
    let error = if is_one { cause.shown() } else { format!("for example: {}", cause.shown_example()) };
    let least = if cause.is_at_least { "at least " } else { "" };
    let of_them = format!("{least}{} of them", count(cause.count));
    match cause.others {
        0 if !cause.is_at_least => error,
        0 if is_one => format!("{of_them}: {error}"),
        0 => format!("{of_them}, {error}"),
        others => {
            let beside = several(others, "other cause");
            format!("{of_them}, beside {beside}{} {error}", if is_one { ":" } else { "," })
        }
    }
}

/// Returns the state of everything in a few sentences. `away` has the errors of inboxes that do not
/// answer. The numbers of messages are of those who need an operator; where a database does not
/// answer, they are lower bounds.
pub(crate) fn summary(subjects: &[Subject<'_>], away: &[OperateError]) -> String {
    let mut sentences = Vec::new();
    let needy = needy(subjects);
    let pipelines = subjects.iter().filter(|subject| matches!(subject.of, Of::Pipeline(_))).count();
    let sick: Vec<&Subject<'_>> = subjects.iter().filter(|subject| subject.is_sick()).collect();
    let late = sick.iter().filter(|subject| subject.needs_attention()).count();
    if !needy.is_empty() {
        let grave: Vec<&Subject<'_>> = sick.iter().copied().filter(|subject| subject.is_grave()).collect();
        let mut reasons = reasons(&grave);
        reasons.extend(messages(&grave, is_partial(subjects, away)));
        let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
        sentences.push(format!("{needy}{why}."));
        let is_other = |subject: &&Subject<'_>| !subject.is_grave() && subject.needs_attention();
        let others: Vec<&Subject<'_>> = sick.iter().copied().filter(is_other).collect();
        if !others.is_empty() {
            sentences.push(format!("{}.", waiting(&others, &others)));
        }
    } else if late > 0 {
        let late = sick.iter().copied().filter(|subject| subject.needs_attention());
        let late: Vec<&Subject<'_>> = late.collect();
        sentences.push(format!("Nothing needs you yet: {}.", waiting(&late, &sick)));
    } else if !sick.is_empty() {
        let parts = parts(sick.iter().copied());
        sentences.push(format!("Nothing needs attention. To watch: {parts} ({}).", kinds(&sick)));
    } else if pipelines == 1 {
        sentences.push(String::from("The pipeline publishes. Nothing needs attention."));
    } else if pipelines == 2 {
        sentences.push(String::from("Both pipelines publish. Nothing needs attention."));
    } else {
        sentences
            .push(format!("All {} pipelines publish. Nothing needs attention.", count(pipelines as u64)));
    }
    // Several pipelines and inboxes may be in one database.
    let places = subjects.iter().filter(|subject| subject.is_away()).map(Subject::database);
    let places: Vec<_> = places.chain(away.iter().map(|error| error.location().map(database))).collect();
    let named: BTreeSet<&str> = places.iter().copied().flatten().collect();
    let others = places.iter().filter(|place| place.is_none()).count();
    match (named.len() + others, named.first()) {
        (0, _) => {}
        (1, Some(place)) => sentences.push(format!("The database {place} does not answer.")),
        (1, None) => sentences.push(String::from("1 database does not answer.")),
        (number, _) => sentences.push(format!("{number} databases do not answer.")),
    }
    sentences.join(" ")
}

/// Returns who continues without an operator, and why they wait: `1 pipeline waits and continues
/// automatically (held, retrying)`. The reasons are those of `of`.
fn waiting(subjects: &[&Subject<'_>], of: &[&Subject<'_>]) -> String {
    let verbs = if subjects.len() == 1 { "waits and continues" } else { "wait and continue" };
    format!("{} {verbs} automatically ({})", parts(subjects.iter().copied()), kinds(of))
}

/// Returns whether messages may be missing from the numbers of these: a database does not answer or
/// cannot be read, or an inbox among `away`.
pub(crate) fn is_partial(subjects: &[Subject<'_>], away: &[OperateError]) -> bool {
    !away.is_empty() || subjects.iter().any(Subject::is_unknown)
}

/// Returns the worst for the title of the window: how many messages are dead, `at least` if some
/// may be missing; without any, how many pipelines and consumers need an operator.
pub(crate) fn in_title(subjects: &[Subject<'_>], is_partial: bool) -> Option<String> {
    if let Some(Count { number, is_at_least }) = number_of(subjects.iter(), &DEAD) {
        let least = if is_at_least || is_partial { "at least " } else { "" };
        return Some(format!("{least}{} dead", count(number)));
    }
    match subjects.iter().filter(|subject| subject.is_grave()).count() {
        0 => None,
        1 => Some(String::from("1 needs you")),
        grave => Some(format!("{} need you", count(grave as u64))),
    }
}

/// Returns pipelines and consumers with their number: `1 pipeline and 2 consumers`.
fn parts<'a>(subjects: impl Iterator<Item = &'a Subject<'a>>) -> String {
    let (mut pipelines, mut consumers) = (0, 0);
    for subject in subjects {
        match subject.of {
            Of::Pipeline(_) => pipelines += 1,
            Of::Consumer(_) => consumers += 1,
        }
    }
    let nouns = [(pipelines, "pipeline"), (consumers, "consumer")];
    let told = nouns.into_iter().filter(|(number, _)| *number > 0);
    told.map(|(number, noun)| several(number, noun)).collect::<Vec<_>>().join(" and ")
}

/// Returns how many pipelines and consumers need an operator, as the beginning of a sentence; empty
/// if none does.
fn needy(subjects: &[Subject<'_>]) -> String {
    let mut parts = Vec::new();
    let mut sum = 0;
    for (is_pipeline, noun) in [(true, "pipeline"), (false, "consumer")] {
        let of_kind =
            || subjects.iter().filter(move |subject| matches!(subject.of, Of::Pipeline(_)) == is_pipeline);
        let grave = of_kind().filter(|subject| subject.is_grave()).count();
        if grave > 0 {
            parts.push(format!("{} of {}", count(grave as u64), several(of_kind().count(), noun)));
        }
        sum += grave;
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("{} {}", parts.join(" and "), if sum == 1 { "needs you" } else { "need you" })
}

/// Returns why operators are needed, apart from single messages and from databases that do not
/// answer, most severe first.
fn reasons(subjects: &[&Subject<'_>]) -> Vec<String> {
    let is_refused = |subject: &&Subject<'_>| match subject.of {
        Of::Pipeline(status) => !status.state.is_known() && !status.is_away(),
        Of::Consumer(_) => false,
    };
    let refused = subjects.iter().any(is_refused).then_some("a database cannot be read");
    let waits = subjects.iter().flat_map(|subject| &subject.waits);
    let symptoms: BTreeSet<Symptom> =
        waits.filter(|wait| wait.needs_operator()).map(|wait| wait.symptom).collect();
    let texts = symptoms.into_iter().filter_map(|symptom| match symptom {
        Symptom::NeverLed => Some("no relay has ever led"),
        Symptom::NoLeader => Some("no relay leads"),
        Symptom::BrokerRefuses => Some("no message reaches the broker"),
        Symptom::NotStored => Some("no checkpoint is stored"),
        Symptom::Paused => Some("a pause keeps messages"),
        Symptom::RowsHeldBack => Some("a transaction holds rows back"),
        Symptom::HistoryKept => Some("old messages cannot be deleted"),
        Symptom::ConsumerStalled => Some("a consumer of this process applies nothing"),
        _ => None,
    });
    refused.into_iter().chain(texts).map(String::from).collect()
}

/// Returns the kinds of conditions, most severe first.
fn kinds(subjects: &[&Subject<'_>]) -> String {
    let symptoms: BTreeSet<Symptom> =
        subjects.iter().flat_map(|subject| &subject.waits).map(|wait| wait.symptom).collect();
    symptoms.into_iter().map(Symptom::short).collect::<Vec<_>>().join(", ")
}

/// Returns the numbers of dead, retrying and held messages. They are lower bounds if some may be
/// missing.
fn messages(subjects: &[&Subject<'_>], is_partial: bool) -> Vec<String> {
    let mut told = Vec::new();
    for (symptoms, state) in
        [(&DEAD[..], "dead"), (&[Symptom::Retrying][..], "retrying"), (&HELD[..], "held")]
    {
        let of_state = number_of(subjects.iter().copied(), symptoms);
        let Some(Count { number, is_at_least }) = of_state else { continue };
        let least = if is_at_least || is_partial { "at least " } else { "" };
        let noun = match (told.is_empty(), number) {
            (true, 1) => " message is",
            (true, _) => " messages are",
            (false, 1) => " is",
            (false, _) => " are",
        };
        told.push(format!("{least}{}{noun} {state}", count(number)));
    }
    told
}

/// The conditions of dead messages.
const DEAD: [Symptom; 2] = [Symptom::Dead, Symptom::ConsumerDead];
/// The conditions of held messages.
const HELD: [Symptom; 2] = [Symptom::Held, Symptom::ConsumerHeld];

/// Returns the number of messages with these conditions, if there are any.
fn number_of<'a>(subjects: impl Iterator<Item = &'a Subject<'a>>, symptoms: &[Symptom]) -> Option<Count> {
    let waits = subjects.flat_map(|subject| &subject.waits);
    let counts = waits.filter(|wait| symptoms.contains(&wait.symptom)).filter_map(|wait| wait.count);
    let none = Count { number: 0, is_at_least: false };
    let sum = counts.fold(none, |sum, of| Count {
        number: sum.number + of.number,
        is_at_least: sum.is_at_least || of.is_at_least,
    });
    Some(sum).filter(|sum| sum.number > 0)
}

/// Returns a number with its noun: `1 pipeline`, `2 pipelines`.
fn several(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use operate::OperateErrorKind;
    use operate::consumers::OwnState;
    use operate::pause::PauseLine;
    use operate::status::{BrokerError, PipelineState};
    use outbox_log::ExceptionState::{self, Dead, Held, Retrying};
    use outbox_log::PauseScope;
    use std::time::Duration;
    use time::OffsetDateTime;

    fn status(name: &str, state: PipelineState, parked: &[(ExceptionState, u64)]) -> PipelineStatus {
        PipelineStatus {
            state,
            exceptions: parked.iter().copied().collect(),
            exceptions_age_seconds: parked.iter().map(|(state, count)| (*state, *count as f64)).collect(),
            ..PipelineStatus::of(name, None, None)
        }
    }

    #[test]
    fn the_worst_is_first() {
        let all = [
            status("quiet", PipelineState::Leading, &[]),
            status("again", PipelineState::Leading, &[(Retrying, 5)]),
            status("away", PipelineState::Unknown, &[]),
            status("young", PipelineState::Leading, &[(Dead, 1)]),
            status("old", PipelineState::Leading, &[(Dead, 9)]),
            PipelineStatus { leaderless_seconds: Some(60.0), ..status("alone", PipelineState::Expired, &[]) },
        ];
        let mut subjects: Vec<Subject<'_>> = all.iter().map(|it| Subject::pipeline(it, None)).collect();
        sort(&mut subjects);
        let names: Vec<&str> = subjects.iter().map(Subject::name).collect();
        assert_eq!(names, ["away", "alone", "old", "young", "again", "quiet"]);
        assert!(subjects[3].is_grave() && !subjects[4].is_grave());
        assert_eq!(badge_text(&subjects[2].waits[0]), "dead 9");
    }

    fn error(text: &str) -> OperateError {
        OperateError::new(OperateErrorKind::Unavailable, text)
    }

    #[test]
    fn one_stopped_database_is_one_and_its_consumers_are_not_fine() {
        let location = Some(String::from("db:5432/shop, schema a"));
        let away =
            |name| PipelineStatus { location: location.clone(), ..status(name, PipelineState::Unknown, &[]) };
        let all = [away("orders"), away("invoices")];
        let now = OffsetDateTime::now_utc();
        let consumer = ConsumerLine {
            consumer: String::from("billing"),
            location: String::from("db:5432/shop"),
            activity: None,
            remembers_from: now,
            has_started: true,
            cause: None,
            untaken: None,
        };
        let places = away_of(all.iter());
        let mut subjects: Vec<_> = all.iter().map(|status| Subject::pipeline(status, None)).collect();
        subjects.push(Subject::consumer(&consumer, &[], &places));
        assert!(subjects[2].is_grave(), "nothing is known of it");
        sort(&mut subjects);
        let names: Vec<&str> = subjects.iter().map(Subject::name).collect();
        assert_eq!(names, ["invoices", "orders", "billing"], "its card only follows from theirs");
        assert_eq!(
            summary(&subjects, &[]),
            "2 of 2 pipelines and 1 of 1 consumer need you. The database db:5432/shop does not answer."
        );
        let error = OperateError::new(OperateErrorKind::Refused, "password authentication failed");
        let refused = PipelineStatus { error: Some(error), ..away("orders") };
        let places = away_of(std::iter::once(&refused));
        let billing = Subject::consumer(&consumer, &[], &places);
        assert!(!billing.is_sick(), "the database answers: it refuses another user");
        assert_eq!(
            summary(&[Subject::pipeline(&refused, None), billing], &[]),
            "1 of 1 pipeline needs you: a database cannot be read."
        );
        let places = away_of(all.iter());
        let elsewhere = ConsumerLine { location: String::from("other:5432/shop"), ..consumer };
        assert!(!Subject::consumer(&elsewhere, &[], &places).is_sick());
    }

    #[test]
    fn one_sentence_says_who_needs_an_operator() {
        let all = [
            status("shipping", PipelineState::Leading, &[(Dead, 2_009), (Held, 41)]),
            status("orders", PipelineState::Leading, &[]),
            status("away", PipelineState::Unknown, &[]),
        ];
        let of = |all: &[PipelineStatus], away: &[OperateError]| {
            summary(&all.iter().map(|it| Subject::pipeline(it, None)).collect::<Vec<_>>(), away)
        };
        assert_eq!(
            of(&all, &[]),
            "2 of 3 pipelines need you: at least 2,009 messages are dead, at least 41 are held. 1 database \
             does not answer."
        );
        assert_eq!(of(&all[1..2], &[]), "The pipeline publishes. Nothing needs attention.");
        assert_eq!(
            of(&all[1..2], &[error("a"), error("b")]),
            "The pipeline publishes. Nothing needs attention. 2 databases do not answer."
        );
        let retrying = [status("orders", PipelineState::Leading, &[(Retrying, 1)])];
        assert_eq!(
            of(&retrying, &[]),
            "Nothing needs you yet: 1 pipeline waits and continues automatically (retrying)."
        );
    }

    #[test]
    fn a_stopped_broker_and_a_pause_that_keeps_messages_are_in_the_first_sentence() {
        let of = |status: &PipelineStatus| summary(&[Subject::pipeline(status, None)], &[]);
        let since = OffsetDateTime::now_utc();
        let trouble = BrokerError { error: String::from("connection refused"), passes: true, since };
        let orders = status("orders", PipelineState::Leading, &[]);
        let stopped = PipelineStatus { broker_error: Some(trouble), ..orders.clone() };
        assert_eq!(of(&stopped), "1 of 1 pipeline needs you: no message reaches the broker.");
        assert_eq!(in_title(&[Subject::pipeline(&stopped, None)], false).as_deref(), Some("1 needs you"));
        assert_eq!(in_title(&[Subject::pipeline(&orders, None)], false), None);
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Pipeline,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since,
            age: Duration::from_secs(90),
        };
        let mut paused = PipelineStatus { paused: vec![pause], ..orders };
        assert_eq!(of(&paused), "Nothing needs attention. To watch: 1 pipeline (paused).");
        paused.oldest_pending_id = Some(7);
        assert_eq!(of(&paused), "1 of 1 pipeline needs you: a pause keeps messages.");
    }

    #[test]
    fn messages_are_told_with_their_most_frequent_error() {
        let mut shipping = status("shipping", PipelineState::Leading, &[(Dead, 2_009)]);
        let text = String::from("# bytes, at most #");
        let example = String::from("2017 bytes, at most 1000");
        let cause =
            Cause { text, example, is_cut: false, count: 1_200, behind: 0, is_at_least: true, others: 2 };
        shipping.causes = BTreeMap::from([(Dead, cause.clone())]);
        let of = |status: &PipelineStatus| {
            let Told { what, why } = told(&sorted(status.waits())[0]);
            assert_eq!(what, "2,009 messages are dead");
            why.unwrap()
        };
        assert_eq!(
            of(&shipping),
            "at least 1,200 of them, beside 2 other causes, for example: 2017 bytes, at most 1000"
        );
        // Others may be among the messages that were not examined.
        shipping.causes.insert(Dead, Cause { others: 0, ..cause.clone() });
        assert_eq!(of(&shipping), "at least 1,200 of them, for example: 2017 bytes, at most 1000");
        let one = Cause { others: 0, is_at_least: false, text: cause.example.clone(), ..cause };
        shipping.causes.insert(Dead, one);
        assert_eq!(of(&shipping), "2017 bytes, at most 1000");
        shipping.causes.clear();
        assert_eq!(of(&shipping), "requeue or discard them");
    }

    /// Goal: messages that follow automatically are not reported as dead. Oracle: the sentence
    /// about a consumer with one dead letter and 2,000 held behind it, and its conditions.
    #[test]
    fn held_messages_of_a_consumer_are_not_dead() {
        let line = ConsumerLine {
            consumer: String::from("billing"),
            location: String::from("db:5432/shop"),
            activity: Some(inbox::Activity { dead: 1, held: 2_000, ..inbox::Activity::default() }),
            remembers_from: OffsetDateTime::now_utc(),
            has_started: true,
            cause: None,
            untaken: None,
        };
        let subjects = [Subject::consumer(&line, &[], &BTreeSet::new())];
        let sentence = "1 of 1 consumer needs you: 1 message is dead, 2,000 are held.";
        assert_eq!(summary(&subjects, &[]), sentence);
        assert_eq!(in_title(&subjects, false).as_deref(), Some("1 dead"));
        let Told { what, why } = told(&subjects[0].waits[1]);
        assert_eq!(what, "2,000 messages are held");
        assert_eq!(why.as_deref(), Some("they follow the dead ones of their keys automatically"));
    }

    fn own(name: &str, state: OwnState) -> OwnConsumers {
        let own = OwnConsumer {
            consumer: name.to_owned(),
            state,
            reads: None,
            in_hand: 0,
            lag: None,
            held_keys: None,
            stalled_for: Duration::ZERO,
            waits_for: Vec::new(),
        };
        OwnConsumers::from([(name.to_owned(), vec![own])])
    }

    /// Goal: a consumer of this process that applies nothing is in the first sentence, on the card
    /// of its inbox if that is configured, and beside the dead letters of the inbox. Oracle: the
    /// conditions of each consumer.
    #[test]
    fn a_consumer_of_this_process_is_one_with_that_of_its_inbox() {
        let line = |location: &str| ConsumerLine {
            consumer: String::from("billing"),
            location: location.to_owned(),
            activity: Some(inbox::Activity { dead: 1, ..inbox::Activity::default() }),
            remembers_from: OffsetDateTime::now_utc(),
            has_started: true,
            cause: None,
            untaken: None,
        };
        let ended = own("billing", OwnState::Ended(Duration::from_secs(9)));
        let lines = [line("db:5432/a"), line("db:5432/b")];
        let kinds = |subject: &Subject<'_>| subject.waits.iter().map(|wait| wait.symptom).collect::<Vec<_>>();
        let both = consumers(&lines, &ended, &BTreeSet::new());
        let [first, second] = &both[..] else { panic!("{} consumers", both.len()) };
        assert_eq!(kinds(first), [Symptom::ConsumerStalled, Symptom::ConsumerDead]);
        assert_eq!(kinds(second), [Symptom::ConsumerDead], "told once");
        let alone = consumers(&[], &ended, &BTreeSet::new());
        assert_eq!((alone[0].name(), kinds(&alone[0])), ("billing", vec![Symptom::ConsumerStalled]));
        assert_eq!(
            summary(&alone, &[]),
            "1 of 1 consumer needs you: a consumer of this process applies nothing."
        );
        let Told { what, why } = told(&alone[0].waits[0]);
        assert_eq!(what, "this process applies nothing");
        assert_eq!(why.as_deref(), Some("its consumer has ended; the service's log says why"));
        let idle = own("billing", OwnState::Connected);
        assert!(!consumers(&[], &idle, &BTreeSet::new())[0].is_sick());
    }

    #[test]
    fn other_conditions_are_what_they_are_and_why() {
        let mut waits = status("away", PipelineState::Unknown, &[]).waits();
        let Told { what, why } = told(&waits[0]);
        assert_eq!((what.as_str(), why.as_deref()), ("the database does not answer", Some("unknown reason")));
        waits[0].why = String::from("no reason");
        assert_eq!(told(&waits[0]), Told { what: String::from("no reason"), why: None });
    }

    /// Goal: a number in the first sentence or the title is not taken for all messages while a
    /// database does not answer. Oracle: both, with a database that is away, with one that refuses
    /// this user, with an inbox that is away, and with all of them there.
    #[test]
    fn numbers_are_lower_bounds_while_a_database_does_not_answer() {
        let dead = status("hooks", PipelineState::Leading, &[(Dead, 8), (Held, 1)]);
        let away = status("orders", PipelineState::Unknown, &[]);
        let error_of = OperateError::new(OperateErrorKind::Refused, "password authentication failed");
        let refused = PipelineStatus { error: Some(error_of), ..away.clone() };
        let told = |all: &[&PipelineStatus], inboxes: &[OperateError]| {
            let subjects: Vec<_> = all.iter().map(|it| Subject::pipeline(it, None)).collect();
            let title = in_title(&subjects, is_partial(&subjects, inboxes)).unwrap_or_default();
            format!("{title} | {}", summary(&subjects, inboxes))
        };
        let bounds = "at least 8 messages are dead, at least 1 is held";
        for text in [told(&[&dead, &away], &[]), told(&[&dead, &refused], &[]), told(&[&dead], &[error("a")])]
        {
            assert!(text.starts_with("at least 8 dead | ") && text.contains(bounds), "{text}");
        }
        let text = told(&[&dead], &[]);
        assert!(text.starts_with("8 dead | "), "{text}");
        assert!(text.contains(": 8 messages are dead, 1 is held."), "{text}");
    }

    /// Goal: the first sentence does not add the messages of a pipeline that continues by itself to
    /// those that need an operator. Oracle: the sentences about one of each kind.
    #[test]
    fn the_first_sentence_counts_only_what_needs_an_operator() {
        let all = [
            status("shipping", PipelineState::Leading, &[(Dead, 2_009)]),
            status("hooks", PipelineState::Leading, &[(Held, 44), (Retrying, 5)]),
            status("billing", PipelineState::Leading, &[]),
        ];
        let subjects: Vec<Subject<'_>> = all.iter().map(|it| Subject::pipeline(it, None)).collect();
        assert_eq!(
            summary(&subjects, &[]),
            "1 of 3 pipelines needs you: 2,009 messages are dead. 1 pipeline waits and continues \
             automatically (held, retrying)."
        );
    }

    /// Goal: held messages are told together with what they wait behind, and only if that is one
    /// condition. Oracle: the condition for each combination.
    #[test]
    fn held_messages_wait_behind_one_condition() {
        let of = |parked: &[(ExceptionState, u64)]| {
            let status = status("hooks", PipelineState::Leading, parked);
            Subject::pipeline(&status, None).held_behind()
        };
        assert_eq!(of(&[(Held, 44), (Retrying, 5)]), Some(Symptom::Retrying));
        assert_eq!(of(&[(Held, 44), (Dead, 5)]), Some(Symptom::Dead));
        assert_eq!(of(&[(Held, 44), (Dead, 5), (Retrying, 1)]), None);
        assert_eq!(of(&[(Held, 44)]), None);
        assert_eq!(of(&[(Retrying, 5)]), None);
        let pause = PauseLine {
            pipeline: String::from("hooks"),
            paused: PauseScope::Topic(String::from("invoices")),
            actor: String::from("ann"),
            reason: String::from("migration"),
            since: OffsetDateTime::now_utc(),
            age: Duration::from_secs(90),
        };
        let paused = PipelineStatus {
            paused: vec![pause],
            ..status("hooks", PipelineState::Leading, &[(Held, 44), (Retrying, 5)])
        };
        assert_eq!(Subject::pipeline(&paused, None).held_behind(), None, "the pause holds some");
    }

    /// Goal: the pipeline with the most dead messages stays first after a requeue that failed,
    /// which makes its messages die anew. Oracle: the order of cards.
    #[test]
    fn many_dead_messages_are_above_older_ones() {
        let dead = |name: &str, number, seconds| PipelineStatus {
            exceptions_age_seconds: BTreeMap::from([(Dead, seconds)]),
            ..status(name, PipelineState::Leading, &[(Dead, number)])
        };
        let all = [dead("few", 60, 65.4), dead("many", 20_000, 65.1), dead("old", 1, 130.0)];
        let mut subjects: Vec<Subject<'_>> = all.iter().map(|it| Subject::pipeline(it, None)).collect();
        sort(&mut subjects);
        assert_eq!(subjects.iter().map(Subject::name).collect::<Vec<_>>(), ["many", "few", "old"]);
        assert_eq!(in_title(&subjects, false).as_deref(), Some("20,061 dead"));
    }

    /// Goal: many dead letters of a consumer are not below a few dead messages of a pipeline.
    #[test]
    fn dead_messages_of_a_consumer_are_as_bad_as_those_of_a_pipeline() {
        let line = ConsumerLine {
            consumer: String::from("billing"),
            location: String::new(),
            activity: Some(inbox::Activity { dead: 2_000, ..inbox::Activity::default() }),
            remembers_from: OffsetDateTime::now_utc(),
            has_started: true,
            cause: None,
            untaken: None,
        };
        let few = status("few", PipelineState::Leading, &[(Dead, 5)]);
        let broken = status("broken", PipelineState::Unknown, &[]);
        let consumer = Subject::consumer(&line, &[], &BTreeSet::new());
        let pipelines = [&few, &broken].map(|status| Subject::pipeline(status, None));
        let mut subjects: Vec<Subject<'_>> = pipelines.into_iter().chain([consumer]).collect();
        sort(&mut subjects);
        assert_eq!(subjects.iter().map(Subject::name).collect::<Vec<_>>(), ["broken", "billing", "few"]);
    }
}
