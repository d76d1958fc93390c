//! Every committed message is published, and only committed messages are.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use super::{NO_OUTBOX, NO_PARKED, NO_TOPIC_READ, TOPIC_READ_INCOMPLETE, need, need_quiet};
use crate::history::{Consumer, OutboxRow};
use crate::index::Index;
use crate::verdict::{Breach, Event, Findings, NotChecked, Subject, Violation};

/// Checks that in the end every outbox row is at the broker or parked.
pub(super) fn check_loss(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    need_quiet(index)?;
    let outbox = need(&index.history.outbox, NO_OUTBOX)?;
    let topic_read = need(&index.history.topic_read, NO_TOPIC_READ)?;
    if !topic_read.complete {
        return Err(TOPIC_READ_INCOMPLETE);
    }
    need(&index.history.parked, NO_PARKED)?;
    findings.checked(outbox.len());
    for row in outbox.iter().filter(|row| !index.is_accounted_for(row.id)) {
        findings.breach(Violation::NeverPublished, || Subject::message(row.id));
    }
    Ok(())
}

/// Checks that no place has a message that was never committed. Reports each id once for each
/// place.
pub(super) fn check_phantoms(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let outbox = need(&index.history.outbox, NO_OUTBOX)?;
    if index.history.topic_read.is_none()
        && index.history.consumers.is_empty()
        && index.history.operations.is_none()
    {
        return Err("only the outbox was read");
    }
    if index.history.operations.is_some() {
        findings.checked(outbox.len());
        outbox.iter().for_each(|row| check_writer(index, row, findings));
    }
    check_tap(index, findings);
    index.history.consumers.iter().for_each(|consumer| check_consumer(index, consumer, findings));
    Ok(())
}

/// Checks that every outbox row was written by an operation that may have committed.
fn check_writer(index: &Index<'_>, row: &OutboxRow, findings: &mut Findings) {
    // A row that an operation names is judged by the outcome of that operation.
    if index.messages.contains_key(&row.id) {
        return;
    }
    let by_row = row.row.as_ref().and_then(|cause| index.rows.get(&**cause));
    match by_row {
        Some(claims) if claims.is_possible() => {}
        Some(_) => findings.breach(Violation::EnqueuedByRolledBack, || Subject {
            row: row.row.clone(),
            ..Subject::message(row.id)
        }),
        // Undone work is judged separately.
        None if index.is_undone(row.id) => {}
        None => findings.breach(Violation::EnqueuedByNobody, || Subject::message(row.id)),
    }
}

fn check_tap(index: &Index<'_>, findings: &mut Findings) {
    let mut named = HashSet::new();
    for (nth, seen) in
        index.history.topic_read.iter().flat_map(|topic_read| &topic_read.occurrences).enumerate()
    {
        findings.checked(1);
        match seen.id {
            None => findings.breach_seen(|| Breach {
                violation: Violation::PublishedWithoutId,
                subject: Subject { key: seen.content.ordering_key().cloned(), ..Subject::default() },
                events: vec![Event::Published { id: None, place: Arc::clone(&seen.place), nth }],
            }),
            Some(id) if !index.was_committed(id) && named.insert(id) => {
                findings.breach(Violation::PublishedUncommitted, || Subject::message(id));
            }
            Some(_) => {}
        }
    }
}

fn check_consumer(index: &Index<'_>, consumer: &Consumer, findings: &mut Findings) {
    let inbox = consumer.inbox.iter().flatten().map(|row| (Violation::RememberedUncommitted, row.id));
    let effects = consumer.effects.iter().flatten().map(|effect| (Violation::AppliedUncommitted, effect.id));
    let letters = consumer.dead_letters.iter().flatten().filter_map(|letter| letter.id);
    let letters = letters.map(|id| (Violation::DeadLetterUncommitted, id));
    let mut named: HashSet<(Violation, Uuid)> = HashSet::new();
    for (violation, id) in inbox.chain(effects).chain(letters) {
        findings.checked(1);
        if !index.was_committed(id) && named.insert((violation, id)) {
            let consumer = Some(Arc::clone(&consumer.name));
            findings.breach(violation, || Subject { consumer, ..Subject::message(id) });
        }
    }
}
