//! Messages that may themselves be the reason why their topic seems to accept nothing. Pure.
//!
//! A destination that is overloaded and one that stumbles over a single message fail in the same
//! way: no answer in time, or an answer that it cannot take the message now. A topic is therefore
//! blocked by such a failure, and the message probes it. If that happens again and again, another
//! message of the topic is tried as well, the *witness*. Once the destination has answered about
//! any other message of the topic, the first one is *blamed*: its failures of this kind concern
//! only itself and its key. Only failures that the adapter marks
//! ([`PublishError::about_this_message`](message::PublishError::about_this_message)) count here.

use std::collections::BTreeMap;

use outbox_log::EntryId;

/// Failures of a message after which it is suspected: then a witness is wanted.
pub(crate) const FAILURES_MIN: u32 = 3;

/// Maximum messages that are remembered. Beyond it, those that are not blamed are forgotten first,
/// then the oldest. This only delays the verdict about them.
const SUSPECTS_MAX: usize = 1_000;

/// All messages that failed in this way and were not confirmed since.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    by_id: BTreeMap<EntryId, Suspect>,
    /// How many of them no other message of their topic has passed.
    unpassed: usize,
}

/// A message that failed in this way.
#[derive(Debug)]
struct Suspect {
    topic: String,
    failures: u32,
    /// Whether the destination has answered about another message of the topic since its first
    /// failure.
    is_passed: bool,
}

impl Suspect {
    fn is_blamed(&self) -> bool {
        self.failures >= FAILURES_MIN && self.is_passed
    }
}

impl Suspects {
    /// Counts a failure.
    pub(crate) fn failed(&mut self, topic: &str, id: EntryId) {
        if self.by_id.len() >= SUSPECTS_MAX && !self.by_id.contains_key(&id) {
            self.keep(|_, suspect| suspect.is_blamed());
            while self.by_id.len() >= SUSPECTS_MAX {
                self.by_id.pop_first();
            }
        }
        if !self.by_id.contains_key(&id) {
            self.unpassed += 1;
        }
        let new = || Suspect { topic: topic.to_owned(), failures: 0, is_passed: false };
        let suspect = self.by_id.entry(id).or_insert_with(new);
        suspect.failures = suspect.failures.saturating_add(1);
    }

    /// Records that the destination has answered about a message of the topic.
    pub(crate) fn answered(&mut self, topic: &str, id: EntryId) {
        if self.unpassed == 0 {
            return;
        }
        let others = self.by_id.iter_mut().filter(|(other, suspect)| **other != id && suspect.topic == topic);
        for (_, suspect) in others.filter(|(_, suspect)| !suspect.is_passed) {
            suspect.is_passed = true;
            self.unpassed -= 1;
        }
    }

    /// Forgets a message that was published or is no longer retried automatically.
    pub(crate) fn forget(&mut self, id: EntryId) {
        if self.by_id.remove(&id).is_some_and(|suspect| !suspect.is_passed) {
            self.unpassed -= 1;
        }
    }

    /// Forgets the suspects of a topic besides its probe and those that are blamed, so that they
    /// can be witnesses again.
    pub(crate) fn forget_witnesses(&mut self, topic: &str, probe: EntryId) {
        self.keep(|id, suspect| suspect.topic != topic || id == probe || suspect.is_blamed());
    }

    fn keep(&mut self, mut keeps: impl FnMut(EntryId, &Suspect) -> bool) {
        self.by_id.retain(|id, suspect| keeps(*id, suspect));
        self.unpassed = self.by_id.values().filter(|suspect| !suspect.is_passed).count();
    }

    /// Returns whether a message has failed in this way.
    #[must_use]
    pub(crate) fn contains(&self, id: EntryId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Returns whether a message failed so often that another one must show whether the topic
    /// accepts any.
    #[must_use]
    pub(crate) fn needs_witness(&self, id: EntryId) -> bool {
        self.by_id.get(&id).is_some_and(|suspect| suspect.failures >= FAILURES_MIN && !suspect.is_passed)
    }

    /// Returns whether the failures of a message concern only itself.
    #[must_use]
    pub(crate) fn is_blamed(&self, id: EntryId) -> bool {
        self.by_id.get(&id).is_some_and(Suspect::is_blamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EntryId = EntryId(1);
    const B: EntryId = EntryId(2);

    #[test]
    fn a_message_is_blamed_after_some_failures_once_another_one_of_its_topic_was_answered() {
        let mut suspects = Suspects::default();
        for failures in 1..=5 {
            suspects.failed("t", A);
            suspects.answered("u", B);
            suspects.answered("t", A);
            assert_eq!(suspects.needs_witness(A), failures >= 3, "{failures}");
            assert!(!suspects.is_blamed(A), "the message itself and other topics prove nothing");
        }
        suspects.answered("t", B);
        assert!(suspects.is_blamed(A) && !suspects.needs_witness(A));
        suspects.forget(A);
        assert!(!suspects.contains(A) && suspects.unpassed == 0);
        suspects.failed("t", A);
        suspects.answered("t", B);
        assert!(!suspects.is_blamed(A), "one failure is not enough");
    }

    #[test]
    fn witnesses_are_forgotten_but_neither_the_probe_nor_the_blamed() {
        let mut suspects = Suspects::default();
        let [blamed, probe, witness, other] = [3, 4, 5, 6].map(EntryId);
        (0..3).for_each(|_| suspects.failed("t", blamed));
        suspects.answered("t", B);
        for id in [probe, witness] {
            suspects.failed("t", id);
        }
        suspects.failed("u", other);
        suspects.forget_witnesses("t", probe);
        let known = [blamed, probe, witness, other].map(|id| suspects.contains(id));
        assert_eq!((known, suspects.unpassed), ([true, true, false, true], 2));
    }

    #[test]
    fn a_bounded_number_is_remembered() {
        let mut suspects = Suspects::default();
        (0..3).for_each(|_| suspects.failed("t", EntryId(0)));
        suspects.answered("t", B);
        for id in 1..10_000 {
            suspects.failed("t", EntryId(id));
            assert!(suspects.by_id.len() <= SUSPECTS_MAX);
        }
        assert!(suspects.is_blamed(EntryId(0)));
    }

    #[test]
    fn however_many_are_blamed_another_one_can_be() {
        let mut suspects = Suspects::default();
        let ids: Vec<EntryId> = (1..=1_001).map(EntryId).collect();
        for id in &ids {
            (0..3).for_each(|_| suspects.failed("t", *id));
            suspects.answered("t", EntryId(0));
        }
        assert!(suspects.is_blamed(ids[1_000]) && suspects.is_blamed(ids[1]));
        assert!(!suspects.contains(ids[0]) && suspects.unpassed == 0);
    }
}
