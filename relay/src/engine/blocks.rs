//! Which keys and topics wait, and for which entries. Pure; rebuilt from the exceptions after a takeover.
//!
//! Order is kept per ordering key across topics: two topics can lead to one queue (RabbitMQ bindings), so an
//! entry of a blocked key waits whatever its topic.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outbox::log::{EntryId, ExceptionState, ExceptionSummary};

use crate::engine::settings::DeadPolicy;

/// The entries for which one key waits.
#[derive(Debug, Default)]
struct KeyBlock {
    /// Retrying or dead: nothing of the key may leave before them.
    stuck: BTreeSet<EntryId>,
    /// Held behind them, in order.
    held: BTreeSet<EntryId>,
    /// Held ones that have been read back and are on their way.
    running: BTreeSet<EntryId>,
}

impl KeyBlock {
    fn is_empty(&self) -> bool {
        self.stuck.is_empty() && self.held.is_empty() && self.running.is_empty()
    }

    /// Whether anything stands before `id`.
    fn has_before(&self, id: EntryId) -> bool {
        let firsts = [self.stuck.first(), self.held.first(), self.running.first()];
        firsts.into_iter().flatten().any(|first| *first < id)
    }

    /// Whether the first held entry has nothing stuck before it.
    fn is_free(&self) -> bool {
        let before = |held| self.stuck.first().is_none_or(|stuck| stuck > held);
        self.running.is_empty() && self.held.first().is_some_and(before)
    }
}

/// All blocked keys and topics of one relay.
#[derive(Debug, Default)]
pub struct Blocks {
    keys: HashMap<String, KeyBlock>,
    /// Held entries without a key: only their topic holds them.
    keyless: KeyBlock,
    /// Topics that do not take messages, each with its probe: the entry whose retry finds out when it does again.
    topics: BTreeMap<String, EntryId>,
    /// Something was unblocked: held entries may be able to leave.
    released: bool,
}

impl Blocks {
    /// Rebuilds the state from what the database holds.
    #[must_use]
    pub fn load(summaries: impl IntoIterator<Item = ExceptionSummary>, policy: DeadPolicy) -> Self {
        let mut blocks = Self { released: true, ..Self::default() };
        for summary in summaries {
            let key = summary.key.as_deref();
            match summary.state {
                ExceptionState::Retrying => blocks.block(key, summary.id),
                ExceptionState::Dead if policy == DeadPolicy::Hold => blocks.block(key, summary.id),
                ExceptionState::Held => blocks.hold(key, summary.id),
                _ => {}
            }
        }
        blocks
    }

    fn of(&mut self, key: Option<&str>) -> &mut KeyBlock {
        match key {
            Some(key) => self.keys.entry(key.to_owned()).or_default(),
            None => &mut self.keyless,
        }
    }

    /// Whether nothing at all is blocked: the fast path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.keyless.is_empty() && self.topics.is_empty()
    }

    /// How many keys wait.
    #[must_use]
    pub fn keys_len(&self) -> usize {
        self.keys.len()
    }

    /// How many topics wait.
    #[must_use]
    pub fn topics_len(&self) -> usize {
        self.topics.len()
    }

    /// Whether a new entry must be held.
    #[must_use]
    pub fn holds(&self, topic: &str, key: Option<&str>) -> bool {
        !self.is_empty()
            && (self.topics.contains_key(topic) || key.is_some_and(|key| self.keys.contains_key(key)))
    }

    /// Whether an entry of the log that is queued already must be held: what was blocked since stands before it.
    /// One that was blocked behind it lets it pass, or the blocked one could leave first.
    #[must_use]
    pub fn holds_queued(&self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        self.topics.contains_key(topic) || self.has_before(key, id)
    }

    /// Whether an entry of the key stands before this one beside the log. A retrying entry waits for it, although it
    /// is due: an operator can have requeued it while an earlier one is still being retried.
    #[must_use]
    pub fn has_before(&self, key: Option<&str>, id: EntryId) -> bool {
        key.and_then(|key| self.keys.get(key)).is_some_and(|block| block.has_before(id))
    }

    /// An entry is stuck: its key waits for it.
    pub fn block(&mut self, key: Option<&str>, id: EntryId) {
        let block = self.of(key);
        block.held.remove(&id);
        block.running.remove(&id);
        block.stuck.insert(id);
        // One before it can have been held meanwhile (it became due late), until those on their way had left.
        let free = block.is_free();
        self.released |= free && key.is_some();
    }

    /// An entry waits behind its key or topic.
    pub fn hold(&mut self, key: Option<&str>, id: EntryId) {
        let block = self.of(key);
        block.running.remove(&id);
        block.held.insert(id);
    }

    /// Whether the entry is known to be stuck.
    #[must_use]
    pub fn is_stuck(&self, key: Option<&str>, id: EntryId) -> bool {
        self.get(key).is_some_and(|block| block.stuck.contains(&id))
    }

    /// Takes a held entry on its way, if nothing of its key stands before it and its topic takes messages.
    pub fn take_held(&mut self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        if self.topics.contains_key(topic) {
            return false;
        }
        let Some(block) = self.get_mut(key) else { return false };
        let stuck_before = block.stuck.first().is_some_and(|stuck| *stuck < id);
        let first = key.is_none() || (!stuck_before && block.held.first() == Some(&id));
        let taken = first && block.held.remove(&id);
        if taken {
            block.running.insert(id);
        }
        taken
    }

    /// Whether an entry that was on its way must go back to waiting: something before it is blocked by now.
    #[must_use]
    pub fn blocks_running(&self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        let before =
            |block: &KeyBlock| !block.stuck.is_empty() || block.held.first().is_some_and(|first| *first < id);
        self.topics.contains_key(topic) || key.and_then(|key| self.keys.get(key)).is_some_and(before)
    }

    /// An entry has left, or was discarded, or is dead and lets its key pass.
    pub fn resolve(&mut self, key: Option<&str>, id: EntryId) {
        let Some(block) = self.get_mut(key) else { return };
        block.stuck.remove(&id);
        block.running.remove(&id);
        block.held.remove(&id);
        // Entries can have been held behind those that were on their way.
        let free = block.is_free();
        let gone = block.is_empty();
        self.released |= free && key.is_some();
        if gone && let Some(key) = key {
            self.keys.remove(key);
        }
    }

    /// A topic does not take messages; `id` is going to find out when it does, if that is news. Returns whether it is.
    pub fn block_topic(&mut self, topic: &str, id: EntryId) -> bool {
        let is_news = !self.topics.contains_key(topic);
        if is_news {
            self.topics.insert(topic.to_owned(), id);
        }
        is_news
    }

    /// Whether a blocked topic waits for the retry of this entry.
    #[must_use]
    pub fn is_probe(&self, topic: &str, id: EntryId) -> bool {
        self.topics.get(topic) == Some(&id)
    }

    /// A message of the topic was confirmed, or nobody is left to find out. Returns whether the topic was blocked until
    /// now.
    pub fn unblock_topic(&mut self, topic: &str) -> bool {
        let was_blocked = self.topics.remove(topic).is_some();
        self.released |= was_blocked;
        was_blocked
    }

    /// A held entry can be read back now: if nothing keeps it waiting, that is due at once.
    pub fn held_is_stored(&mut self, topic: &str, key: Option<&str>) {
        let topic_waits = self.topics.contains_key(topic);
        self.released |= !topic_waits && self.get(key).is_some_and(|block| key.is_none() || block.is_free());
    }

    /// Whether held entries may be able to leave since the last call.
    pub fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
            && (!self.keyless.held.is_empty() || self.keys.values().any(|key| !key.held.is_empty()))
    }

    fn get(&self, key: Option<&str>) -> Option<&KeyBlock> {
        match key {
            Some(key) => self.keys.get(key),
            None => Some(&self.keyless),
        }
    }

    fn get_mut(&mut self, key: Option<&str>) -> Option<&mut KeyBlock> {
        match key {
            Some(key) => self.keys.get_mut(key),
            None => Some(&mut self.keyless),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: Option<&str> = Some("k");

    #[test]
    fn held_entries_leave_in_order_once_the_stuck_one_is_gone() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(1));
        blocks.hold(K, EntryId(2));
        blocks.hold(K, EntryId(3));
        assert!(blocks.holds("t", K) && !blocks.holds("t", Some("other")));
        assert!(!blocks.take_held("t", K, EntryId(2)), "the stuck entry is still there");
        blocks.resolve(K, EntryId(1));
        assert!(blocks.take_released());
        assert!(!blocks.take_held("t", K, EntryId(3)), "not before entry 2");
        assert!(blocks.take_held("t", K, EntryId(2)));
        assert!(blocks.take_held("t", K, EntryId(3)));
        assert!(blocks.holds("t", K), "new entries wait until the held ones have left");
        blocks.resolve(K, EntryId(2));
        blocks.resolve(K, EntryId(3));
        assert!(blocks.is_empty());
    }

    #[test]
    fn a_blocked_topic_holds_its_entries_and_the_keys_behind_them() {
        let mut blocks = Blocks::default();
        assert!(blocks.block_topic("missing", EntryId(1)));
        assert!(!blocks.block_topic("missing", EntryId(2)));
        assert!(blocks.is_probe("missing", EntryId(1)) && !blocks.is_probe("missing", EntryId(2)));
        assert!(blocks.holds("missing", None) && !blocks.holds("other", None));
        blocks.hold(K, EntryId(5));
        blocks.hold(K, EntryId(6));
        assert!(!blocks.take_held("missing", K, EntryId(5)));
        assert!(!blocks.take_held("other", K, EntryId(6)), "its key waits behind entry 5");
        assert!(blocks.unblock_topic("missing") && blocks.take_released());
        assert!(blocks.take_held("missing", K, EntryId(5)));
        assert!(blocks.take_held("other", K, EntryId(6)));
    }

    #[test]
    fn what_is_queued_waits_only_for_what_stands_before_it() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(2));
        assert!(!blocks.holds_queued("t", K, EntryId(1)), "it must leave before entry 2");
        assert!(blocks.holds_queued("t", K, EntryId(3)));
        blocks.block_topic("t", EntryId(2));
        assert!(blocks.holds_queued("t", K, EntryId(1)));
    }

    #[test]
    fn a_running_entry_that_fails_blocks_again() {
        let mut blocks = Blocks::default();
        blocks.hold(K, EntryId(1));
        blocks.hold(K, EntryId(2));
        assert!(blocks.take_held("t", K, EntryId(1)));
        assert!(blocks.take_held("t", K, EntryId(2)));
        blocks.block(K, EntryId(1));
        blocks.hold(K, EntryId(2));
        assert!(!blocks.take_held("t", K, EntryId(2)));
    }

    #[test]
    fn an_entry_held_before_a_running_one_leaves_when_that_gets_stuck() {
        let mut blocks = Blocks::default();
        blocks.hold(K, EntryId(5));
        assert!(blocks.take_held("t", K, EntryId(5)));
        blocks.hold(K, EntryId(4));
        blocks.held_is_stored("t", K);
        assert!(!blocks.take_released(), "entry 5 is on its way");
        blocks.block(K, EntryId(5));
        assert!(blocks.has_before(K, EntryId(5)), "entry 5 waits for entry 4");
        assert!(blocks.take_released() && blocks.take_held("t", K, EntryId(4)));
    }

    #[test]
    fn the_policy_decides_whether_a_dead_entry_blocks() {
        let dead =
            || [ExceptionSummary { id: EntryId(1), key: Some("k".into()), state: ExceptionState::Dead }];
        assert!(Blocks::load(dead(), DeadPolicy::Hold).holds("t", K));
        assert!(!Blocks::load(dead(), DeadPolicy::Pass).holds("t", K));
    }
}
