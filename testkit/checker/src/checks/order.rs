//! Causal order of each key: if B was enqueued after the transaction of A committed, the first
//! occurrence of A comes before that of B. Later copies may appear at any time.
//!
//! Two things order A before B: a smaller number within the key, and an end of A's transaction
//! before the start of B's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use super::{NO_TOPIC_READ, need};
use crate::index::{Index, Turn};
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let history = index.history;
    let topic_read = history.topic_read.as_ref().filter(|topic_read| topic_read.ordered);
    let consumers = history.consumers.iter().filter(|consumer| consumer.ordered);
    let consumers: Vec<_> =
        consumers.filter_map(|consumer| Some((consumer, consumer.effects.as_ref()?))).collect();
    if topic_read.is_none() && consumers.is_empty() {
        need(&history.topic_read, NO_TOPIC_READ)?;
        return Err("the broker keeps no order");
    }
    let mut is_known = false;
    if let Some(topic_read) = topic_read {
        let seen = topic_read.occurrences.iter().filter_map(|seen| Some((&*seen.place, seen.id?)));
        is_known |= check_sequence(index, seen, Violation::CameLate, &Subject::default(), findings);
    }
    for (consumer, effects) in consumers {
        let seen = effects.iter().map(|effect| (&*effect.scope, effect.id));
        let subject = Subject { consumer: Some(Arc::clone(&consumer.name)), ..Subject::default() };
        is_known |= check_sequence(index, seen, Violation::AppliedLate, &subject, findings);
    }
    if is_known { Ok(()) } else { Err("the causal order of messages was not recorded") }
}

/// Checks one sequence. Returns whether part of the causal order was known, or the sequence has
/// nothing to order.
fn check_sequence<'a>(
    index: &Index<'_>,
    seen: impl Iterator<Item = (&'a str, Uuid)>,
    violation: Violation,
    subject: &Subject,
    findings: &mut Findings,
) -> bool {
    let mut met = HashSet::new();
    let mut keys: HashMap<(&str, &Arc<str>), Latest> = HashMap::new();
    let mut is_known = false;
    for (place, id) in seen.filter(|seen| met.insert(*seen)) {
        let Some((key, turn)) = index.key(id).zip(index.turn(id)) else { continue };
        findings.checked(1);
        is_known |= turn.seq.is_some() || turn.started.is_some();
        if let Some(ahead) = keys.entry((place, key)).or_default().pass(id, turn) {
            findings.breach(violation, || Subject {
                ids: vec![id, ahead],
                key: Some(Arc::clone(key)),
                ..subject.clone()
            });
        }
    }
    is_known || keys.is_empty()
}

/// The messages of one key so far that come last in the causal order. A message that follows in the
/// sequence must not be ordered before them.
#[derive(Default)]
struct Latest {
    /// The message with the largest number.
    number: Option<(u64, Uuid)>,
    /// The message whose transaction began last.
    start: Option<(u64, Uuid)>,
}

impl Latest {
    /// Adds the next message. Returns a message that came before it and should have come after it.
    fn pass(&mut self, id: Uuid, turn: Turn) -> Option<Uuid> {
        let number = self.number.filter(|(number, _)| turn.seq.is_some_and(|mine| mine < *number));
        let start = self.start.filter(|(start, _)| turn.ended.is_some_and(|mine| mine < *start));
        self.number = turn.seq.map(|number| (number, id)).into_iter().chain(self.number).max();
        self.start = turn.started.map(|start| (start, id)).into_iter().chain(self.start).max();
        number.or(start).map(|(_, ahead)| ahead)
    }
}
