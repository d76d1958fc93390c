//! The result.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::range::Range;
use super::reconcile::{Kind, Place, Seen};

/// The kinds of findings that are counted, in the order of their columns.
pub const COLUMNS: [&str; 4] = ["missing", "doubled", "phantom", "altered"];

/// The extent of the comparison, and its result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every pipeline was compared and no fault was found. Each place lists what was not
    /// checked there.
    pub proven: bool,
    /// Messages that wait for an operator's decision: dead ones, those held behind them, and open
    /// dead letters.
    pub undecided: u64,
    /// The range of message ids begins after this one.
    pub after: Uuid,
    /// The last id of the range.
    pub until: Uuid,
    /// The pipelines.
    pub pipelines: Vec<ComparedPipeline>,
    /// The pipelines that could not be compared.
    pub not_compared: Vec<NotCompared>,
    /// The first findings.
    pub messages: Vec<FaultyMessage>,
    /// The number of further findings.
    pub unnamed: usize,
    #[serde(skip)]
    limit: usize,
}

/// A pipeline that could not be compared.
#[derive(Debug, Serialize)]
pub struct NotCompared {
    /// The name of the pipeline.
    pub pipeline: String,
    /// The reason.
    pub reason: String,
}

/// The result of one pipeline, as the comparison counts it.
#[derive(Debug)]
pub struct Compared {
    pipeline: String,
    pub(super) enqueued: u64,
    pub(super) published: u64,
    pub(super) pending: u64,
    pub(super) parked: u64,
    /// Parked messages that operators discarded.
    pub(super) discarded: u64,
    /// Records of the broker in the range, copies included; `None` when the broker was not read.
    pub(super) records: Option<u64>,
    pub(super) unreadable_records: u64,
    pub(super) broker_checked_from: BTreeMap<String, Uuid>,
    broker_unread: Option<&'static str>,
    pub(super) inboxes: Vec<InboxCounts>,
    /// All faults, by place and column.
    found: BTreeMap<(Place, &'static str), u64>,
    /// The first of them.
    findings: Vec<Finding>,
    findings_max: usize,
}

/// The result of one inbox.
#[derive(Debug, Default)]
pub(super) struct InboxCounts {
    pub(super) consumer: String,
    pub(super) has_effects: bool,
    /// The consumer's group, where its position can be read.
    pub(super) group: Option<String>,
    /// Whether the group has committed something.
    pub(super) is_group_known: bool,
    /// Whether no consumer has opened it yet.
    pub(super) is_unopened: bool,
    pub(super) applied: u64,
    /// Messages that the consumer tries again.
    pub(super) retrying: u64,
    /// Open dead letters.
    pub(super) dead_letters: u64,
    /// Dead letters that operators discarded.
    pub(super) closed: u64,
    pub(super) waiting: u64,
}

/// One fault of one message.
#[derive(Debug)]
pub(super) struct Finding {
    id: Uuid,
    topic: Option<String>,
    place: Place,
    kind: Kind,
}

impl Finding {
    fn new(seen: &Seen, place: Place, kind: Kind) -> Self {
        let topic = seen.outbox.as_ref().map(|stored| stored.topic.clone());
        Self { id: seen.id, topic, place, kind }
    }
}

/// The messages of a pipeline.
#[derive(Debug, Serialize)]
pub struct ComparedPipeline {
    /// The name of the pipeline.
    pub pipeline: String,
    /// Messages of the outbox.
    pub enqueued: u64,
    /// Messages that the broker has confirmed.
    pub published: u64,
    /// Messages that the consumer has not reached yet.
    pub pending: u64,
    /// Messages that are dead, or held behind a dead one.
    pub parked: u64,
    /// Parked messages that operators discarded.
    pub discarded: u64,
    /// The broker.
    pub broker: ComparedPlace,
    /// The inboxes.
    pub inboxes: Vec<ComparedPlace>,
}

/// The broker, or an inbox.
#[derive(Debug, Default, Serialize)]
pub struct ComparedPlace {
    /// The name of the consumer, or `(broker)`.
    pub name: String,
    /// Records of the broker, copies included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Messages that the inbox remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<u64>,
    /// Messages that the consumer tries again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retrying: Option<u64>,
    /// Open dead letters, which wait for an operator's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// Messages whose dead letters operators discarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up: Option<u64>,
    /// Messages that the consumer has not reached yet; `None` when that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// The number of findings, for each of [`COLUMNS`].
    #[serde(flatten)]
    pub found: BTreeMap<&'static str, u64>,
    /// Checks that were skipped here, and why.
    pub not_checked: Vec<String>,
}

/// A finding: one fault of one message.
#[derive(Debug, Serialize)]
pub struct FaultyMessage {
    /// The id of the message.
    pub id: Uuid,
    /// The pipeline.
    pub pipeline: String,
    /// The name of the place.
    pub place: String,
    /// One of [`COLUMNS`].
    pub found: &'static str,
    /// The fault in words, to follow the name of the place.
    pub kind: &'static str,
    /// The topic, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
}

impl FaultyMessage {
    /// Returns whether the message is in an inbox but has had no effect.
    #[must_use]
    pub fn is_effectless(&self) -> bool {
        self.kind == Kind::Effectless.text()
    }
}

impl Compared {
    pub(super) fn new(
        pipeline: &str,
        inboxes: Vec<InboxCounts>,
        broker_unread: Option<&'static str>,
        findings_max: usize,
    ) -> Self {
        Self {
            pipeline: pipeline.to_owned(),
            enqueued: 0,
            published: 0,
            pending: 0,
            parked: 0,
            discarded: 0,
            records: None,
            unreadable_records: 0,
            broker_checked_from: BTreeMap::new(),
            broker_unread,
            inboxes,
            found: BTreeMap::new(),
            findings: Vec::new(),
            findings_max,
        }
    }

    /// Adds a fault of a message. Only the first ones are kept with their messages.
    pub(super) fn find(&mut self, seen: &Seen, place: Place, kind: Kind) {
        *self.found.entry((place, kind.column())).or_default() += 1;
        if self.findings.len() < self.findings_max {
            self.findings.push(Finding::new(seen, place, kind));
        }
    }

    #[cfg(test)]
    pub(super) fn findings_bytes(&self) -> usize {
        self.findings.capacity() * size_of::<Finding>()
    }

    fn found(&self, place: Place) -> BTreeMap<&'static str, u64> {
        COLUMNS.map(|column| (column, self.found.get(&(place, column)).copied().unwrap_or_default())).into()
    }

    fn broker(&self) -> ComparedPlace {
        let mut not_checked: Vec<String> =
            self.broker_unread.iter().map(|why| format!("everything: {why}")).collect();
        for (topic, from) in &self.broker_checked_from {
            not_checked.push(if from.is_max() {
                format!("missing messages of {topic}: one of its partitions has no record left")
            } else {
                format!("missing messages of {topic} below {from}: the broker has deleted older records")
            });
        }
        if self.published == 0 && self.enqueued > 0 {
            let text = "missing messages: no relay with this name has published anything; is the name right?";
            not_checked.push(text.to_owned());
        }
        if self.unreadable_records > 0 {
            not_checked.push(format!("{} records that are not messages", self.unreadable_records));
        }
        let found = self.found(Place::Broker);
        ComparedPlace {
            name: String::from("(broker)"),
            records: self.records,
            found,
            not_checked,
            ..ComparedPlace::default()
        }
    }

    fn inbox(&self, place: usize, inbox: &InboxCounts) -> ComparedPlace {
        let effects = "doubled messages: set verify.inbox.effects to compare effects with the inbox";
        let effects = (!inbox.has_effects).then(|| effects.to_owned());
        let unopened = inbox
            .is_unopened
            .then(|| String::from("missing messages: it does not remember ids yet; start its consumer once"));
        let unknown = inbox.group.as_ref().filter(|_| !inbox.is_group_known).map(|group| {
            format!("waiting messages: the group {group:?} has no committed offsets in these topics; is its name right?")
        });
        ComparedPlace {
            name: inbox.consumer.clone(),
            records: None,
            applied: Some(inbox.applied),
            retrying: Some(inbox.retrying),
            dead_letters: Some(inbox.dead_letters),
            given_up: Some(inbox.closed),
            waiting: inbox.is_group_known.then_some(inbox.waiting),
            found: self.found(Place::Inbox(place)),
            not_checked: unopened.into_iter().chain(unknown).chain(effects).collect(),
        }
    }
}

impl Report {
    /// Creates a report without a pipeline, which names at most `limit` messages.
    #[must_use]
    pub fn new(range: Range, limit: usize) -> Self {
        let Range { after, until, .. } = range;
        Self {
            proven: true,
            undecided: 0,
            after,
            until,
            pipelines: Vec::new(),
            not_compared: Vec::new(),
            messages: Vec::new(),
            unnamed: 0,
            limit,
        }
    }

    /// Returns whether a message is missing, doubled, altered or of unknown origin.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.unnamed > 0 || !self.messages.is_empty()
    }

    /// Returns the conclusion in words.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let undecided = self.undecided;
        match undecided {
            _ if self.has_faults() => "problems found".to_owned(),
            _ if !self.not_compared.is_empty() => "no problems found in what was compared".to_owned(),
            0 => "no problems found in what was checked".to_owned(),
            1 => "no message is lost or doubled; 1 message waits for an operator".to_owned(),
            _ => format!("no message is lost or doubled; {undecided} messages wait for an operator"),
        }
    }

    /// Adds a pipeline that could not be compared, with the reason.
    pub fn add_not_compared(&mut self, pipeline: &str, reason: String) {
        self.proven = false;
        self.not_compared.push(NotCompared { pipeline: pipeline.to_owned(), reason });
    }

    /// Adds a pipeline.
    pub fn add(&mut self, compared: Compared) {
        let mut inboxes: Vec<_> =
            compared.inboxes.iter().enumerate().map(|(place, inbox)| compared.inbox(place, inbox)).collect();
        if inboxes.is_empty() {
            let not_checked =
                vec![String::from("everything: no inbox is configured; add [[verify.inbox]] or --inbox")];
            let name = String::from("(inboxes)");
            inboxes.push(ComparedPlace { name, not_checked, ..ComparedPlace::default() });
        }
        let broker = compared.broker();
        let found = usize::try_from(compared.found.values().sum::<u64>()).unwrap_or(usize::MAX);
        let Compared { pipeline, enqueued, published, pending, parked, discarded, findings, .. } = compared;
        self.proven &= found == 0;
        self.undecided += parked.saturating_sub(discarded);
        self.undecided += inboxes.iter().filter_map(|inbox| inbox.dead_letters).sum::<u64>();
        let room = self.limit.saturating_sub(self.messages.len()).min(findings.len());
        self.unnamed += found - room;
        for Finding { id, topic, place, kind } in findings.into_iter().take(room) {
            let place = match place {
                Place::Broker => broker.name.clone(),
                Place::Inbox(place) => inboxes[place].name.clone(),
            };
            let pipeline = pipeline.clone();
            self.messages.push(FaultyMessage {
                id,
                pipeline,
                place,
                found: kind.column(),
                kind: kind.text(),
                topic,
            });
        }
        let shown =
            ComparedPipeline { pipeline, enqueued, published, pending, parked, discarded, broker, inboxes };
        self.pipelines.push(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_that_no_consumer_has_opened_is_named_as_the_doctor_does() {
        let of = |is_unopened| {
            let inbox = InboxCounts { has_effects: true, is_unopened, ..InboxCounts::default() };
            let compared = Compared::new("orders", vec![inbox], None, 10);
            compared.inbox(0, &compared.inboxes[0]).not_checked
        };
        assert_eq!(of(false), [] as [&str; 0]);
        let told = of(true);
        assert!(
            told.len() == 1 && told[0].contains("does not remember ids yet; start its consumer"),
            "{told:?}"
        );
    }
}
