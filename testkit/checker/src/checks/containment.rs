//! A message that cannot be published delays only its own key. In the end a message is held for one
//! of two reasons. Either another message of its key is dead, retried or scheduled. Or its topic
//! accepts nothing: then one message of the topic is retried, and the others are held. The promise
//! of no loss covers the publication of messages of other keys and topics.

use std::collections::HashSet;

use super::{NO_OUTBOX, NO_PARKED, need, need_quiet};
use crate::history::ParkedEntry;
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    need_quiet(index)?;
    need(&index.history.outbox, NO_OUTBOX)?;
    let parked = need(&index.history.parked, NO_PARKED)?;
    let topic = |id| index.outbox.get(&id).and_then(|row| row.topic.as_ref());
    let retrying = parked.iter().filter(|parked| parked.state == ParkedEntry::Retrying);
    let topics: HashSet<_> = retrying.filter_map(|parked| topic(parked.id)).collect();
    let causes = parked.iter().filter(|parked| {
        matches!(parked.state, ParkedEntry::Dead | ParkedEntry::Retrying | ParkedEntry::Scheduled)
    });
    let causes: HashSet<_> = causes.filter_map(|parked| index.key(parked.id)).collect();
    for held in parked.iter().filter(|parked| parked.state == ParkedEntry::Held) {
        findings.checked(1);
        let key = index.key(held.id);
        let behind = key.is_some_and(|key| causes.contains(key));
        if !behind && !topic(held.id).is_some_and(|topic| topics.contains(topic)) {
            findings.breach(Violation::HeldWithoutCause, || Subject {
                key: key.cloned(),
                ..Subject::message(held.id)
            });
        }
    }
    Ok(())
}
