//! One effect for each message, consumer and scope, together with its inbox row.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use super::{NO_EFFECTS, NO_OUTBOX, NO_PARKED, need, need_quiet};
use crate::history::{Consumer, Effect, OutboxRow};
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Subject, Violation};

/// Checks that no message takes effect twice.
pub(super) fn check_at_most_once(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    for (consumer, effects) in with_effects(index)? {
        findings.checked(effects.len());
        let mut applied = HashSet::with_capacity(effects.len());
        for effect in effects.iter().filter(|effect| !applied.insert((effect.id, &*effect.scope))) {
            findings.breach(Violation::AppliedAgain, || of(consumer, effect.id, Some(&effect.scope)));
        }
    }
    Ok(())
}

/// Checks that in the end every message has taken effect, except parked ones and dead letters.
pub(super) fn check_exactly_once(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    need_quiet(index)?;
    let outbox = need(&index.history.outbox, NO_OUTBOX)?;
    need(&index.history.parked, NO_PARKED)?;
    for (consumer, effects) in with_effects(index)? {
        let mut decided: HashSet<Uuid> = effects.iter().map(|effect| effect.id).collect();
        decided.extend(consumer.dead_letters.iter().flatten().filter_map(|letter| letter.id));
        let stored = outbox.iter().filter(|row| applies(consumer, row)).map(|row| row.id);
        let takes_all = consumer.topics.is_none();
        let removed = index.removed.iter().copied().filter(|id| takes_all && !index.outbox.contains_key(id));
        for id in stored.chain(removed) {
            findings.checked(1);
            if !decided.contains(&id) && !index.parked.contains_key(&id) {
                findings.breach(Violation::NeverApplied, || of(consumer, id, None));
            }
        }
    }
    Ok(())
}

/// Checks that inbox row and effect both exist, or neither does.
pub(super) fn check_inbox(index: &Index<'_>, findings: &mut Findings) -> Result<(), NotChecked> {
    let consumers = with_effects(index)?;
    let both = consumers
        .iter()
        .filter_map(|(consumer, effects)| Some((*consumer, *effects, consumer.inbox.as_ref()?)));
    let both: Vec<_> = both.collect();
    if both.is_empty() {
        return Err("no inbox was read");
    }
    for (consumer, effects, inbox) in both {
        let applied: HashSet<_> = effects.iter().map(|effect| (effect.id, &*effect.scope)).collect();
        let expired = consumer.expired.iter().flatten();
        let remembered: HashSet<_> = inbox.iter().chain(expired).map(|row| (row.id, &*row.scope)).collect();
        findings.checked(applied.len() + remembered.len());
        for row in inbox.iter().filter(|row| !applied.contains(&(row.id, &*row.scope))) {
            findings.breach(Violation::RememberedUnapplied, || of(consumer, row.id, Some(&row.scope)));
        }
        // The messages are in the order of the effects, each reported once.
        let mut named = HashSet::new();
        for Effect { id, scope, .. } in effects {
            if !remembered.contains(&(*id, &**scope)) && named.insert((*id, &**scope)) {
                findings.breach(Violation::AppliedUnremembered, || of(consumer, *id, Some(scope)));
            }
        }
    }
    Ok(())
}

/// Returns whether the consumer must apply the message of this row.
fn applies(consumer: &Consumer, row: &OutboxRow) -> bool {
    match (&consumer.topics, &row.topic) {
        (Some(topics), Some(topic)) => topics.contains(topic),
        _ => true,
    }
}

/// Returns the consumers whose effects were read.
fn with_effects<'a>(index: &Index<'a>) -> Result<Vec<(&'a Consumer, &'a [Effect])>, NotChecked> {
    let consumers = index.history.consumers.iter();
    let consumers: Vec<_> =
        consumers.filter_map(|consumer| Some((consumer, consumer.effects.as_deref()?))).collect();
    if consumers.is_empty() { Err(NO_EFFECTS) } else { Ok(consumers) }
}

fn of(consumer: &Consumer, id: Uuid, scope: Option<&Arc<str>>) -> Subject {
    Subject { consumer: Some(Arc::clone(&consumer.name)), scope: scope.cloned(), ..Subject::message(id) }
}
