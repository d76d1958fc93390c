//! Everything that is wrong, worst first. Pure.

use std::cmp::Reverse;
use std::time::Duration;

use operate::consumers::ConsumerLine;
use operate::status::{Count, PipelineStatus, Symptom, Wait};

use super::layout::count;

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
    Consumer(&'a ConsumerLine),
}

impl<'a> Subject<'a> {
    pub(crate) fn pipeline(status: &'a PipelineStatus, own: Option<String>) -> Self {
        Self { of: Of::Pipeline(status), waits: sorted(status.waits()), own }
    }

    pub(crate) fn consumer(line: &'a ConsumerLine) -> Self {
        Self { of: Of::Consumer(line), waits: sorted(line.waits()), own: None }
    }

    pub(crate) fn name(&self) -> &'a str {
        match self.of {
            Of::Pipeline(status) => &status.pipeline,
            Of::Consumer(line) => &line.consumer,
        }
    }

    pub(crate) fn is_sick(&self) -> bool {
        !self.waits.is_empty() || self.own.is_some()
    }

    /// Returns whether an operator has to act.
    pub(crate) fn is_grave(&self) -> bool {
        self.own.is_some() || self.waits.iter().any(is_grave)
    }

    fn rank(&self) -> Rank<'a> {
        let worst = self.waits.first();
        Rank {
            is_fine: !self.is_sick(),
            passes: !self.is_grave(),
            symptom: worst.map_or(Symptom::NoLeader, |wait| wait.symptom),
            lasts: Reverse(worst.and_then(|wait| wait.lasts).unwrap_or_default()),
            name: self.name(),
        }
    }
}

/// The rank of a subject, smallest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    is_fine: bool,
    passes: bool,
    symptom: Symptom,
    lasts: Reverse<Duration>,
    name: &'a str,
}

/// Sorts subjects: those that need an operator before those that pass, then by symptom, then the
/// longest first, then by name. Those that are fine are last.
pub(crate) fn sort(subjects: &mut [Subject<'_>]) {
    subjects.sort_by(|one, other| one.rank().cmp(&other.rank()));
}

/// Returns whether an operator has to act: it is permanent, and no operator caused it on purpose.
/// Held messages alone need no operator: their cause is listed separately.
pub(crate) fn is_grave(wait: &Wait) -> bool {
    match wait.symptom {
        Symptom::DatabaseAway => true,
        Symptom::Paused | Symptom::Held => false,
        _ => !wait.passes,
    }
}

fn sorted(mut waits: Vec<Wait>) -> Vec<Wait> {
    waits.sort_by_key(|wait| (!is_grave(wait), wait.symptom, Reverse(wait.lasts.unwrap_or_default())));
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

/// Returns the reason in one sentence, with the most frequent error if messages have one.
pub(crate) fn sentence(wait: &Wait) -> String {
    let (Some(of), Some(cause)) = (wait.count, &wait.cause) else { return wait.why.clone() };
    let state = wait.symptom.short();
    let least = if of.is_at_least { "≥ " } else { "" };
    let subject = match of.number {
        1 => format!("1 message is {state}"),
        number => format!("{least}{} messages are {state}", count(number)),
    };
    let least = if cause.is_at_least { "≥ " } else { "" };
    let counted = format!("{} ({least}{})", cause.shown(), count(cause.count));
    match cause.others {
        0 if cause.is_at_least => format!("{subject}: {counted}"),
        0 => format!("{subject}: {}", cause.shown()),
        others => format!("{subject}: {counted}, and {}", several(others, "other cause")),
    }
}

/// Returns the state of everything in one or two sentences. `away` is the number of inboxes that do
/// not answer.
pub(crate) fn summary(subjects: &[Subject<'_>], away: usize) -> String {
    let mut sentences = Vec::new();
    let needy = needy(subjects);
    let pipelines = subjects.iter().filter(|subject| matches!(subject.of, Of::Pipeline(_))).count();
    let sick = subjects.iter().filter(|subject| subject.is_sick()).count();
    if !needy.is_empty() {
        let messages = messages(subjects);
        let why = if messages.is_empty() { String::new() } else { format!(": {}", messages.join(", ")) };
        sentences.push(format!("{needy}{why}."));
    } else if sick > 0 {
        let verb = if sick == 1 { "waits" } else { "wait" };
        sentences.push(format!("Nothing needs attention; {} {verb}.", several(sick, "part")));
    } else if pipelines == 1 {
        sentences.push(String::from("The pipeline publishes. Nothing needs attention."));
    } else {
        sentences
            .push(format!("All {} pipelines publish. Nothing needs attention.", count(pipelines as u64)));
    }
    let is_away =
        |subject: &&Subject<'_>| subject.waits.iter().any(|wait| wait.symptom == Symptom::DatabaseAway);
    match subjects.iter().filter(is_away).count() + away {
        0 => {}
        1 => sentences.push(String::from("1 database does not answer.")),
        number => sentences.push(format!("{number} databases do not answer.")),
    }
    sentences.join(" ")
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

/// Returns the numbers of dead and held messages.
fn messages(subjects: &[Subject<'_>]) -> Vec<String> {
    let mut told = Vec::new();
    for (kinds, state) in
        [(&[Symptom::Dead, Symptom::ConsumerDead][..], "dead"), (&[Symptom::Held][..], "held")]
    {
        let waits = subjects.iter().flat_map(|subject| &subject.waits);
        let counts = waits.filter(|wait| kinds.contains(&wait.symptom)).filter_map(|wait| wait.count);
        let (number, is_at_least) = counts.fold((0, false), |(number, is_at_least), of| {
            (number + of.number, is_at_least || of.is_at_least)
        });
        let least = if is_at_least { "≥ " } else { "" };
        let noun = match (told.is_empty(), number) {
            (true, 1) => " message is",
            (true, _) => " messages are",
            (false, 1) => " is",
            (false, _) => " are",
        };
        if number > 0 {
            told.push(format!("{least}{}{noun} {state}", count(number)));
        }
    }
    told
}

/// Returns a number with its noun: `1 pipeline`, `2 pipelines`.
fn several(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use operate::cause::Cause;
    use operate::status::PipelineState;
    use outbox_log::ExceptionState::{self, Dead, Held, Retrying};
    use std::collections::BTreeMap;

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
            status("alone", PipelineState::Idle, &[]),
        ];
        let mut subjects: Vec<Subject<'_>> = all.iter().map(|it| Subject::pipeline(it, None)).collect();
        sort(&mut subjects);
        let names: Vec<&str> = subjects.iter().map(Subject::name).collect();
        assert_eq!(names, ["away", "alone", "old", "young", "again", "quiet"]);
        assert!(subjects[3].is_grave() && !subjects[4].is_grave());
        assert_eq!(badge_text(&subjects[2].waits[0]), "dead 9");
    }

    #[test]
    fn one_sentence_says_who_needs_an_operator() {
        let all = [
            status("shipping", PipelineState::Leading, &[(Dead, 2_009), (Held, 41)]),
            status("orders", PipelineState::Leading, &[]),
            status("away", PipelineState::Unknown, &[]),
        ];
        let of = |all: &[PipelineStatus], away| {
            summary(&all.iter().map(|it| Subject::pipeline(it, None)).collect::<Vec<_>>(), away)
        };
        assert_eq!(
            of(&all, 0),
            "2 of 3 pipelines need you: 2,009 messages are dead, 41 are held. 1 database does not answer."
        );
        assert_eq!(of(&all[1..2], 0), "The pipeline publishes. Nothing needs attention.");
        assert_eq!(
            of(&all[1..2], 2),
            "The pipeline publishes. Nothing needs attention. 2 databases do not answer."
        );
        let retrying = [status("orders", PipelineState::Leading, &[(Retrying, 1)])];
        assert_eq!(of(&retrying, 0), "Nothing needs attention; 1 part waits.");
    }

    #[test]
    fn messages_are_told_with_their_most_frequent_error() {
        let mut shipping = status("shipping", PipelineState::Leading, &[(Dead, 2_009)]);
        let text = String::from("no route");
        let cause = Cause { text, is_cut: false, count: 1_200, is_at_least: true, others: 2 };
        shipping.causes = BTreeMap::from([(Dead, cause.clone())]);
        let told = |status: &PipelineStatus| sentence(&sorted(status.waits())[0]);
        assert_eq!(told(&shipping), "2,009 messages are dead: no route (≥ 1,200), and 2 other causes");
        // Others may be among the messages that were not examined.
        shipping.causes.insert(Dead, Cause { others: 0, ..cause.clone() });
        assert_eq!(told(&shipping), "2,009 messages are dead: no route (≥ 1,200)");
        shipping.causes.insert(Dead, Cause { others: 0, is_at_least: false, ..cause });
        assert_eq!(told(&shipping), "2,009 messages are dead: no route");
        shipping.causes.clear();
        assert!(told(&shipping).ends_with("requeue or discard them"));
    }
}
