//! Properties that hold at any moment, and at the end.

use std::collections::{BTreeMap, HashMap, HashSet};

use message::{Message, OrderingKey, Submission};
use outbox_log::{EntryId, ExceptionChange, ExceptionState, Parked, PauseScope};

use super::{OVERSIZE, World};
use crate::amount::Amount;
use crate::held::QueueHash;

impl World {
    /// Checks that nothing is submitted that the machine knows to be paused.
    pub(super) fn check_pauses(&self, batch: &[Submission]) {
        for Submission { message, .. } in batch {
            let key = message.key.as_ref().map(|key| PauseScope::Key(key.as_str().to_owned()));
            let topic = PauseScope::Topic(message.topic.as_str().to_owned());
            let scopes = [Some(PauseScope::Pipeline), Some(topic), key];
            let paused = scopes.into_iter().flatten().find(|scope| self.told.contains(scope));
            assert_eq!(paused, None, "{message:?} is submitted");
        }
    }

    /// Checks that nothing is submitted that an operator has discarded.
    pub(super) fn check_discarded(&self, batch: &[Submission]) {
        for Submission { message, .. } in batch {
            assert!(!self.discarded.contains(&message.id.to_string()), "{message:?} is submitted");
        }
    }

    /// Checks that a topic is blocked only while one of its entries is going to be retried.
    pub(super) fn check_probes(&self) {
        let is_kept = |topic: &str| self.machine.silent.kept_blocked.contains(topic);
        for (topic, id) in self.machine.blocks.probes().filter(|(topic, _)| !is_kept(topic)) {
            let change = self.machine.unstored.latest(*id);
            let state = match change {
                Some(ExceptionChange::Park(parked)) => Some(parked.state),
                Some(ExceptionChange::Resolve(_)) => None,
                None => self.log.rows.get(id).map(|row| row.parked.state),
            };
            // The machine has not read yet that an operator has discarded it.
            let is_retried = self.machine.readmitted.contains(id)
                || matches!(state, Some(ExceptionState::Retrying | ExceptionState::Discarded));
            assert!(is_retried, "entry {} is {state:?}, and topic {topic} waits for it", id.0);
        }
    }

    /// Checks that an entry is postponed only while its receipt is awaited.
    pub(super) fn check_silent(&self) {
        let silent = &self.machine.silent;
        for id in silent.postponed.keys() {
            assert!(silent.awaited.contains(*id), "entry {} is postponed, and nobody will answer", id.0);
        }
    }

    /// Checks that the publisher has at most two windows of messages without an answer, and one
    /// message; that messages of destinations that answer have at least half a window of them; and
    /// that the machine knows what the publisher has.
    pub(super) fn check_publisher(&self) {
        let amounts = self.in_flight.iter().map(|submission| Amount::of(submission.message.wire_bytes()));
        let has = amounts.fold(Amount::default(), Amount::plus);
        let (entries, bytes) = (self.settings.window_entries, self.settings.window_bytes);
        let has_max = Amount { entries: 2 * entries, bytes: 2 * bytes + OVERSIZE };
        assert!(!has.exceeds(has_max), "the publisher has {has:?}");
        let awaited = self.machine.silent.awaited.amount();
        let awaited_max = Amount { entries: entries + entries / 2, bytes: bytes + bytes / 2 };
        assert!(!awaited.exceeds(awaited_max), "{awaited:?} of it is awaited");
        if self.machine.session_end().is_none() {
            let in_flight = self.machine.session.in_flight();
            assert_eq!(in_flight.plus(awaited), has, "{in_flight:?} is in flight");
        }
    }

    /// Checks that a queue is idle only while something stops its first entry that has not been
    /// read back.
    pub(super) fn check_rest(&self) {
        let idle = self.machine.blocks.idle();
        if idle.is_empty() {
            return;
        }
        let held = self.log.held().map(|(_, id, row)| (id, row.parked.clone()));
        let mut held: BTreeMap<EntryId, Parked> = held.collect();
        for (id, change) in self.machine.unstored.all() {
            match change {
                ExceptionChange::Park(parked) if parked.state == ExceptionState::Held => {
                    held.insert(*id, parked.clone());
                }
                _ => _ = held.remove(id),
            }
        }
        for (queue, from) in idle {
            let is_next = |(id, row): &(&EntryId, &Parked)| {
                **id >= from && QueueHash::of(&row.topic, row.key.as_deref()) == queue
            };
            let next = held.iter().find(is_next);
            let blocks = &self.machine.blocks;
            let is_stopped = next.is_some_and(|(id, row)| {
                let is_kept = blocks.keeps(&row.topic, row.key.as_deref(), *id);
                (is_kept || blocks.has_a_turn_later()) && blocks.releases(&row.topic, queue, *id)
            });
            assert!(is_stopped, "nothing stops {next:?}, and nothing releases its queue from {} on", from.0);
        }
    }

    /// Returns how many entries are missing at the broker, without messages on which it hangs and
    /// those behind one of the same key.
    pub(super) fn left_behind(&self) -> usize {
        let published: HashSet<_> = self.broker.iter().map(|message| message.id).collect();
        let mut waits: HashSet<&OrderingKey> = HashSet::new();
        let mut missing = 0;
        for message in &self.log.entries {
            let is_behind = message.key.as_ref().is_some_and(|key| waits.contains(key));
            if self.hanging.contains(&message.id.to_string()) {
                waits.extend(&message.key);
            } else if !is_behind && !published.contains(&message.id) {
                missing += 1;
            }
        }
        missing
    }

    pub(super) fn check(&self, seed: u64) {
        let published: HashSet<_> = self.broker.iter().map(|message| message.id).collect();
        let is_lost = |message: &&Message| {
            !published.contains(&message.id) && !self.discarded.contains(&message.id.to_string())
        };
        let lost = self.log.entries.iter().filter(is_lost).count();
        assert_eq!(lost, 0, "seed {seed}: entries were lost");
        let mut seen = HashSet::new();
        let mut last: HashMap<&OrderingKey, usize> = HashMap::new();
        for message in self.broker.iter().filter(|message| seen.insert(message.id)) {
            let Some(key) = &message.key else { continue };
            let place = self.log.entries.iter().position(|entry| entry.id == message.id).unwrap();
            // A scheduled entry has no place in the order.
            if self.log.delays.contains_key(&(place as i64 + 1)) {
                continue;
            }
            if let Some(before) = last.insert(key, place) {
                assert!(before < place, "seed {seed}: key {key}: entry {place} after entry {before}");
            }
        }
    }
}
