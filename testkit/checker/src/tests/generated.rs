//! Histories that are valid by construction, and the same histories with one change.

use proptest::prelude::*;
use proptest::sample::Index;
use uuid::Uuid;

use super::violations;
use crate::{
    BusinessRow, Consumer, Content, Digest, Effect, Enqueued, Forgotten, History, InboxRow, Occurrence,
    Operation, OutboxRow, Outcome, Parked, ParkedEntry, TopicRead, Verdict, Violation as V,
};

/// A transaction to play.
#[derive(Debug, Clone)]
struct Step {
    outcome: Outcome,
    /// Whether the transaction committed, if its outcome is unknown.
    happened: bool,
    /// The key of each message of the transaction.
    keys: Vec<u8>,
    /// The duration of the transaction. The next transaction begins one tick after the beginning of
    /// this one.
    ticks: u64,
    /// Whether the broker refuses the messages, so that every later message of their keys is held.
    is_poison: bool,
    /// The earlier occurrences that are repeated after the messages of this transaction.
    again: Vec<Index>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome =
        prop_oneof![4 => Just(Outcome::Ok), 1 => Just(Outcome::Failed), 1 => Just(Outcome::Unknown)];
    let keys = prop::collection::vec(0..3_u8, 1..4);
    let again = prop::collection::vec(any::<Index>(), 0..3);
    let step = (outcome, any::<bool>(), keys, 1..40_u64, prop::bool::weighted(0.1), again).prop_map(
        |(outcome, happened, keys, ticks, is_poison, again)| Step {
            outcome,
            happened,
            keys,
            ticks,
            is_poison,
            again,
        },
    );
    prop::collection::vec(step, 1..16)
}

/// Plays the steps and returns a history that keeps every promise.
fn play(steps: &[Step]) -> History {
    let mut seqs = [0_u64; 3];
    let mut blocked = [false; 3];
    let (mut operations, mut business, mut outbox, mut parked) = (vec![], vec![], vec![], vec![]);
    let mut occurrences: Vec<Occurrence> = vec![];
    let mut next_id = 1_u128;
    for (number, step) in steps.iter().enumerate() {
        let is_committed = step.outcome == Outcome::Ok || (step.outcome == Outcome::Unknown && step.happened);
        let name: std::sync::Arc<str> = format!("row-{number}").into();
        let mut messages = vec![];
        for key in &step.keys {
            let index = usize::from(*key);
            let id = Uuid::from_u128(next_id);
            next_id += 1;
            let content = Content::of(&format!("key-{key}"), &next_id.to_be_bytes());
            seqs[index] += 1;
            messages.push(Enqueued {
                id,
                seq: Some(seqs[index]),
                content: content.clone(),
                ..Enqueued::default()
            });
            if !is_committed {
                continue;
            }
            if blocked[index] || step.is_poison {
                let state = if blocked[index] { ParkedEntry::Held } else { ParkedEntry::Dead };
                parked.push(Parked { id, state });
                blocked[index] = true;
            } else {
                occurrences.push(Occurrence {
                    id: Some(id),
                    place: "events".into(),
                    content: content.clone(),
                });
            }
            let position = outbox.len() as i64;
            outbox.push(OutboxRow {
                id,
                position,
                row: Some(name.clone()),
                passed: Some(true),
                content,
                ..OutboxRow::default()
            });
        }
        if is_committed {
            let messages = Some(step.keys.len() as u32);
            business.push(BusinessRow { id: name.clone(), messages, payload: None });
        }
        if !occurrences.is_empty() {
            let again: Vec<_> = step.again.iter().map(|index| index.get(&occurrences).clone()).collect();
            occurrences.extend(again);
        }
        let started = number as u64;
        operations.push(Operation {
            id: format!("op-{number}").into(),
            outcome: step.outcome,
            started: Some(started),
            ended: (step.outcome != Outcome::Unknown).then_some(started + step.ticks),
            messages,
            rows: vec![name],
            ..Operation::default()
        });
    }
    let mut applied = std::collections::HashSet::new();
    let first = occurrences.iter().filter(|seen| applied.insert(seen.id));
    let effects: Vec<_> = first
        .map(|seen| Effect { id: seen.id.unwrap(), content: seen.content.clone(), ..Effect::default() })
        .collect();
    let inbox = effects.iter().map(|effect| InboxRow { id: effect.id, ..InboxRow::default() }).collect();
    let consumer = Consumer {
        name: "one".into(),
        ordered: true,
        inbox: Some(inbox),
        effects: Some(effects),
        ..Consumer::default()
    };
    History {
        quiet: true,
        operations: Some(operations),
        business: Some(business),
        outbox: Some(outbox),
        parked: Some(parked),
        removed: Some(vec![]),
        forgotten: Forgotten::default(),
        topic_read: Some(TopicRead { ordered: true, complete: true, occurrences }),
        consumers: vec![consumer],
        leases: Some(vec![]),
        leaks: Some(vec![]),
        sagas: None,
    }
}

/// A change to a history. Returns the violation that must be found, or `None` if the change is
/// impossible.
type Change = fn(&mut History, Index) -> Option<V>;

fn pick(length: usize, index: Index) -> Option<usize> {
    (length > 0).then(|| index.index(length))
}

const CHANGES: [Change; 12] = [
    // An outbox row of a published message is missing.
    |h, index| {
        let occurrences = &mut h.topic_read.as_mut()?.occurrences;
        let id = occurrences[pick(occurrences.len(), index)?].id;
        h.outbox.as_mut()?.retain(|row| Some(row.id) != id);
        Some(V::PublishedUncommitted)
    },
    // A message is missing at the broker.
    |h, index| {
        let occurrences = &mut h.topic_read.as_mut()?.occurrences;
        let id = occurrences[pick(occurrences.len(), index)?].id;
        occurrences.retain(|seen| seen.id != id);
        Some(V::NeverPublished)
    },
    // The cursor has passed a row that is not published, and whose parked entry is missing.
    |h, index| {
        let parked = h.parked.as_mut()?;
        parked.remove(pick(parked.len(), index)?);
        Some(V::PassedUnpublished)
    },
    // A business row is missing, but its messages exist.
    |h, index| {
        let business = h.business.as_mut()?;
        business.remove(pick(business.len(), index)?);
        Some(V::CommittedInPart)
    },
    // A client got the opposite of the true answer.
    |h, index| {
        let operations = h.operations.as_mut()?;
        let at = pick(operations.len(), index)?;
        let operation = &mut operations[at];
        let (outcome, expected) = match operation.outcome {
            Outcome::Ok => (Outcome::Failed, V::FailedAndPresent),
            Outcome::Failed => (Outcome::Ok, V::DoneAndAbsent),
            Outcome::Unknown => return None,
        };
        operation.outcome = outcome;
        Some(expected)
    },
    // Another program writes to the broker.
    |h, _| {
        h.topic_read
            .as_mut()?
            .occurrences
            .push(Occurrence { id: Some(Uuid::max()), ..Occurrence::default() });
        Some(V::PublishedUncommitted)
    },
    // A copy has different content.
    |h, index| {
        let occurrences = &mut h.topic_read.as_mut()?.occurrences;
        let at = pick(occurrences.len(), index)?;
        occurrences[at].content.payload = Some(Digest::of(b"other"));
        Some(V::Altered)
    },
    // Two neighbours of one key are published in the wrong order.
    |h, _| {
        let mut met = std::collections::HashSet::new();
        let occurrences = &mut h.topic_read.as_mut()?.occurrences;
        occurrences.retain(|seen| met.insert(seen.id));
        let pair = |key| {
            let mut of_key =
                (0..occurrences.len()).filter(|at| occurrences[*at].content.key.as_deref() == Some(key));
            Some((of_key.next()?, of_key.next()?))
        };
        let (first, second) = ["key-0", "key-1", "key-2"].into_iter().find_map(pair)?;
        occurrences.swap(first, second);
        Some(V::CameLate)
    },
    // An effect happens again.
    |h, index| {
        let effects = h.consumers[0].effects.as_mut()?;
        let effect = effects[pick(effects.len(), index)?].clone();
        effects.push(effect);
        Some(V::AppliedAgain)
    },
    // An effect is missing, but its inbox row exists.
    |h, index| {
        let effects = h.consumers[0].effects.as_mut()?;
        effects.remove(pick(effects.len(), index)?);
        Some(V::RememberedUnapplied)
    },
    // An inbox row is missing, but its effect exists.
    |h, index| {
        let inbox = h.consumers[0].inbox.as_mut()?;
        inbox.remove(pick(inbox.len(), index)?);
        Some(V::AppliedUnremembered)
    },
    // Messages are held, although no earlier message is still dead.
    |h, _| {
        let parked = h.parked.as_mut()?;
        parked.iter().any(|parked| parked.state == ParkedEntry::Held).then_some(())?;
        parked.iter_mut().for_each(|parked| parked.state = ParkedEntry::Held);
        Some(V::HeldWithoutCause)
    },
];

proptest! {
    #[test]
    fn a_history_that_keeps_every_promise_passes(steps in steps()) {
        let verdict = Verdict::of(&play(&steps));
        prop_assert!(verdict.holds(), "{}", verdict);
    }

    #[test]
    fn one_change_is_found(steps in steps(), change in 0..CHANGES.len(), index in any::<Index>()) {
        let mut history = play(&steps);
        let expected = CHANGES[change](&mut history, index);
        prop_assume!(expected.is_some());
        let found = violations(&history);
        prop_assert!(found.contains(&expected.unwrap()), "{:?} is not among {:?}", expected, found);
    }
}
