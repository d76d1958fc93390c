//! The result, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use uuid::Uuid;

use super::range::Range;
use super::reconcile::{Kind, Place};
use crate::cli::output::table;

/// The names of the columns of findings, in order.
const COLUMNS: [&str; 4] = ["missing", "doubled", "phantom", "altered"];

/// The extent of the comparison, and its result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Whether no fault was found. Each place lists what was not checked there.
    proven: bool,
    /// Messages that wait for an operator's decision: dead ones, those held behind them, and open
    /// dead letters.
    undecided: u64,
    /// The range of message ids: from `after`, exclusive, to `until`, inclusive.
    after: Uuid,
    until: Uuid,
    pipelines: Vec<Shown>,
    /// The first findings.
    messages: Vec<Named>,
    /// The number of further findings.
    unnamed: usize,
    #[serde(skip)]
    limit: usize,
}

/// The result of one pipeline, as the comparison counts it.
#[derive(Debug)]
pub(super) struct Compared {
    pipeline: String,
    pub(super) enqueued: u64,
    pub(super) published: u64,
    pub(super) pending: u64,
    pub(super) parked: u64,
    /// Parked messages that operators gave up.
    pub(super) discarded: u64,
    /// Records of the broker in the range, copies included; `None` when the broker was not read.
    pub(super) records: Option<u64>,
    pub(super) unreadable_records: u64,
    pub(super) broker_checked_from: Option<Uuid>,
    broker_unread: Option<&'static str>,
    pub(super) inboxes: Vec<InboxCounts>,
    pub(super) findings: Vec<Finding>,
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
    pub(super) applied: u64,
    /// Messages that the consumer tries again.
    pub(super) retrying: u64,
    /// Open dead letters.
    pub(super) dead_letters: u64,
    /// Dead letters that operators gave up.
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
    pub(super) fn new(id: Uuid, topic: Option<String>, place: Place, kind: Kind) -> Self {
        Self { id, topic, place, kind }
    }
}

#[derive(Debug, Serialize)]
struct Shown {
    pipeline: String,
    enqueued: u64,
    published: u64,
    pending: u64,
    parked: u64,
    /// Parked messages that operators gave up.
    discarded: u64,
    broker: ShownPlace,
    inboxes: Vec<ShownPlace>,
}

/// The broker, or an inbox.
#[derive(Debug, Default, Serialize)]
struct ShownPlace {
    name: String,
    /// Records of the broker, copies included.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
    /// Messages that the inbox remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<u64>,
    /// Messages that the consumer tries again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retrying: Option<u64>,
    /// Open dead letters, which wait for an operator's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letters: Option<u64>,
    /// Messages whose dead letters operators gave up.
    #[serde(skip_serializing_if = "Option::is_none")]
    given_up: Option<u64>,
    /// Messages that the consumer has not reached yet; `None` when that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    #[serde(flatten)]
    found: BTreeMap<&'static str, u64>,
    /// Checks that were skipped here, and why.
    not_checked: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Named {
    id: Uuid,
    pipeline: String,
    place: String,
    found: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
}

impl Compared {
    pub(super) fn new(
        pipeline: &str,
        inboxes: Vec<InboxCounts>,
        broker_unread: Option<&'static str>,
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
            broker_checked_from: None,
            broker_unread,
            inboxes,
            findings: Vec::new(),
        }
    }

    fn found(&self, place: Place) -> BTreeMap<&'static str, u64> {
        let mut found: BTreeMap<_, _> = COLUMNS.map(|column| (column, 0)).into();
        for finding in self.findings.iter().filter(|finding| finding.place == place) {
            *found.entry(finding.kind.column()).or_default() += 1;
        }
        found
    }

    fn broker(&self) -> ShownPlace {
        let mut not_checked: Vec<String> =
            self.broker_unread.iter().map(|why| format!("all: {why}")).collect();
        if let Some(from) = self.broker_checked_from {
            not_checked.push(format!("missing below {from}: the broker has removed older records"));
        }
        if self.published == 0 && self.enqueued > 0 {
            let text = "missing: nothing has been published by a relay of this name; is it the right one?";
            not_checked.push(text.to_owned());
        }
        if self.unreadable_records > 0 {
            not_checked.push(format!("{} records that are no messages", self.unreadable_records));
        }
        let found = self.found(Place::Broker);
        ShownPlace {
            name: String::from("(broker)"),
            records: self.records,
            found,
            not_checked,
            ..ShownPlace::default()
        }
    }

    fn inbox(&self, (place, inbox): (usize, &InboxCounts)) -> ShownPlace {
        let effects = "doubled: give verify.inbox.effects to compare effects with the inbox";
        let effects = (!inbox.has_effects).then(|| effects.to_owned());
        let unknown = inbox.group.as_ref().filter(|_| !inbox.is_group_known).map(|group| {
            format!("waiting: the group {group:?} has committed nothing of these topics; is its name right?")
        });
        ShownPlace {
            name: inbox.consumer.clone(),
            records: None,
            applied: Some(inbox.applied),
            retrying: Some(inbox.retrying),
            dead_letters: Some(inbox.dead_letters),
            given_up: Some(inbox.closed),
            waiting: inbox.is_group_known.then_some(inbox.waiting),
            found: self.found(Place::Inbox(place)),
            not_checked: unknown.into_iter().chain(effects).collect(),
        }
    }
}

impl Report {
    pub(super) fn new(range: Range, limit: usize) -> Self {
        let Range { after, until, .. } = range;
        Self {
            proven: true,
            undecided: 0,
            after,
            until,
            pipelines: Vec::new(),
            messages: Vec::new(),
            unnamed: 0,
            limit,
        }
    }

    /// Adds a pipeline.
    pub(super) fn add(&mut self, compared: Compared) {
        let mut inboxes: Vec<_> =
            compared.inboxes.iter().enumerate().map(|inbox| compared.inbox(inbox)).collect();
        if inboxes.is_empty() {
            let not_checked = vec![String::from("all: no inbox is given; add [[verify.inbox]] or --inbox")];
            let name = String::from("(inboxes)");
            inboxes.push(ShownPlace { name, not_checked, ..ShownPlace::default() });
        }
        let broker = compared.broker();
        let Compared { pipeline, enqueued, published, pending, parked, discarded, findings, .. } = compared;
        self.proven &= findings.is_empty();
        self.undecided += parked.saturating_sub(discarded);
        self.undecided += inboxes.iter().filter_map(|inbox| inbox.dead_letters).sum::<u64>();
        for Finding { id, topic, place, kind } in findings {
            if self.messages.len() == self.limit {
                self.unnamed += 1;
                continue;
            }
            let place = match place {
                Place::Broker => broker.name.clone(),
                Place::Inbox(place) => inboxes[place].name.clone(),
            };
            let pipeline = pipeline.clone();
            self.messages.push(Named { id, pipeline, place, found: kind.column(), kind: kind.text(), topic });
        }
        let shown = Shown { pipeline, enqueued, published, pending, parked, discarded, broker, inboxes };
        self.pipelines.push(shown);
    }

    pub(super) fn is_proven(&self) -> bool {
        self.proven
    }

    /// Returns the number of messages that wait for a decision.
    pub(super) fn undecided(&self) -> u64 {
        self.undecided
    }

    /// Returns a row for each place, then the skipped checks, then the messages.
    pub(super) fn table(&self) -> String {
        let places = |shown: &Shown| -> Vec<[String; 12]> {
            let row = |place: &ShownPlace| {
                let or_dash = |count: Option<u64>| crate::cli::output::or_dash(count);
                let found = |column| or_dash(place.found.get(column).copied());
                [
                    shown.pipeline.clone(),
                    place.name.clone(),
                    shown.enqueued.to_string(),
                    shown.published.to_string(),
                    shown.pending.to_string(),
                    shown.parked.to_string(),
                    or_dash(place.applied.or(place.records)),
                    or_dash(place.waiting),
                    found(COLUMNS[0]),
                    found(COLUMNS[1]),
                    found(COLUMNS[2]),
                    found(COLUMNS[3]),
                ]
            };
            std::iter::once(&shown.broker).chain(&shown.inboxes).map(row).collect()
        };
        let headers = [
            "pipeline",
            "place",
            "enqueued",
            "published",
            "pending",
            "parked",
            "there",
            "waiting",
            "missing",
            "doubled",
            "phantom",
            "altered",
        ];
        let mut text = table(headers, self.pipelines.iter().flat_map(places));
        text.push('\n');
        // Writing to a String cannot fail.
        for shown in &self.pipelines {
            if shown.discarded > 0 {
                let Shown { pipeline, discarded, .. } = shown;
                let _ = writeln!(
                    text,
                    "discarded: {pipeline}: {discarded} given up by operators: \
                     relay dead list --pipeline {pipeline} --state discarded"
                );
            }
            for place in std::iter::once(&shown.broker).chain(&shown.inboxes) {
                for what in &place.not_checked {
                    let _ = writeln!(text, "not checked: {} {}: {what}", shown.pipeline, place.name);
                }
                let (pipeline, name) = (&shown.pipeline, &place.name);
                for (word, count, what) in [
                    ("retrying", place.retrying, "the consumer tries them again"),
                    ("dead letters", place.dead_letters, "an operator has to decide: relay dead list"),
                    ("given up", place.given_up, "operators closed their dead letters"),
                ] {
                    if let Some(count) = count.filter(|count| *count > 0) {
                        let _ = writeln!(text, "{word}: {pipeline} {name}: {count}; {what}");
                    }
                }
            }
        }
        for Named { id, place, kind, found, topic, .. } in &self.messages {
            let topic = topic.as_deref().map(|topic| format!(" (topic {topic})")).unwrap_or_default();
            let _ = writeln!(text, "{found}: {id}{topic}: {place}: {kind}");
        }
        if self.unnamed > 0 {
            let _ = writeln!(text, "and {} more; raise --limit to name them", self.unnamed);
        }
        let waiting =
            self.pipelines.iter().flat_map(|shown| &shown.inboxes).filter_map(|place| place.waiting);
        let waiting: u64 = waiting.sum();
        if waiting > 0 {
            let _ = writeln!(text, "not consumed yet: {waiting}; their consumers have not come to them");
        }
        if self.messages.iter().any(|named| named.kind == Kind::Effectless.text()) {
            let _ = writeln!(
                text,
                "without an effect: does verify.inbox.effects cover these event types? One SELECT for each with \
                 UNION ALL, or effects_kinds = [\"...\"]"
            );
        }
        let undecided = self.undecided;
        let _ = match (self.proven, undecided) {
            (true, 0) => write!(text, "nothing is wrong with what was checked"),
            (true, _) => {
                write!(text, "nothing is lost or doubled; {undecided} messages wait for an operator")
            }
            (false, _) => write!(text, "something is wrong"),
        };
        text
    }
}
