//! Tracks the waiting keys and topics. Pure; rebuilt from the exceptions after a takeover.
//!
//! Order is kept per ordering key across topics: two topics can lead to one queue (RabbitMQ
//! bindings), so an entry of a blocked key waits whatever its topic.
//!
//! The state of a key is small, however much is held behind it: the ids of its stuck entries, and
//! the id at which its held ones begin ([`Held`]).

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_log::{EntryId, ExceptionState, ExceptionSummary, HeldAsk, HeldQueue, HeldQueues, QueueName};

use crate::amount::Amount;
use crate::bursts::Bursts;
use crate::busy::{Busy, Turn};
use crate::held::{Held, QueueHash};
use crate::paused::Paused;
use crate::settings::DeadPolicy;
use crate::stuck::Stuck;
use crate::suspects::Suspects;
use crate::topic_queues::{Rest, TopicQueues};

/// The decision about a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It may be published.
    Free,
    /// It waits in the window until the entries held before it have been read back.
    Wait,
    /// It is held.
    Hold,
}

/// All blocked keys and topics of one relay.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Stuck entries and open submissions, which stop keys.
    stuck: Stuck,
    /// Topics that do not accept messages.
    topics: BTreeMap<String, Probe>,
    /// Topics whose destinations have more messages than they take soon.
    busy: Busy,
    /// Entries that may be the reason why their topics seem to accept no messages.
    suspects: Suspects,
    /// The pauses that operators have set.
    paused: Paused,
    /// Queues with held entries.
    pub(super) held: Held,
    /// Those of them that rest because of their topics.
    topic_queues: TopicQueues,
    /// Keys that have more messages than leave soon.
    pub(super) bursts: Bursts,
}

/// How a topic that does not accept messages is tried.
#[derive(Debug)]
struct Probe {
    /// The entry whose retry shows when the topic accepts messages again.
    id: EntryId,
    witness: Witness,
    /// Whether the first held entries without a key are all suspects. Then other queues are read.
    is_keyless_tried: bool,
}

/// Another entry that is tried beside the probe of a topic, because the probe may be at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Witness {
    /// None is wanted.
    None,
    /// A walk over the held queues looks for one.
    Wanted,
    /// A queue is read back for it.
    Awaited,
    /// This entry. It may be published although its topic is blocked.
    Chosen(EntryId),
}

impl Blocks {
    /// Loads an exception from the database.
    pub(crate) fn load(&mut self, summary: &ExceptionSummary, policy: DeadPolicy) {
        match summary.state {
            ExceptionState::Retrying => self.block(summary.key.as_deref(), summary.id),
            ExceptionState::Dead if policy == DeadPolicy::Hold => {
                self.block(summary.key.as_deref(), summary.id);
            }
            _ => {}
        }
    }

    /// Loads a queue from the database.
    pub(crate) fn load_queue(&mut self, queue: &HeldQueue) {
        self.held.load(QueueHash::of_name(&queue.name), queue.first);
    }

    /// Returns whether nothing at all is blocked: the fast path.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.stuck.is_empty()
            && self.held.is_empty()
            && self.topics.is_empty()
            && self.busy.is_empty()
            && self.paused.is_empty()
    }

    /// Returns the minimum number of waiting keys. It is not exact, because a key can be stuck and
    /// also have held entries.
    #[must_use]
    pub(crate) fn keys_len(&self) -> usize {
        self.stuck.keys_len().max(self.held.len())
    }

    /// Returns how many topics wait.
    #[must_use]
    pub(crate) fn topics_len(&self) -> usize {
        self.topics.len()
    }

    /// Returns how many topics are busy.
    #[must_use]
    pub(crate) fn busy_len(&self) -> usize {
        self.busy.len()
    }

    /// Returns whether the topic does not accept messages, its destination had no room, or it is
    /// paused.
    #[must_use]
    pub(crate) fn is_blocked(&self, topic: &str) -> bool {
        self.topics.contains_key(topic) || self.busy.is_refused(topic) || self.paused.has_topic(topic)
    }

    /// Returns whether the topic is busy and lets nothing more through in this turn.
    #[must_use]
    pub(crate) fn is_full(&self, topic: &str) -> bool {
        self.busy.is_full(topic) && !self.topics.contains_key(topic)
    }

    /// Returns whether an operator has paused everything. Then nothing is submitted.
    #[must_use]
    pub(crate) fn is_pipeline_paused(&self) -> bool {
        self.paused.has_pipeline()
    }

    /// Takes over the pauses that operators have set. Returns whether anything has changed: then
    /// queued entries must be checked again.
    pub(crate) fn set_paused(&mut self, paused: Paused) -> bool {
        if self.paused == paused {
            return false;
        }
        let before = std::mem::replace(&mut self.paused, paused);
        for queue in self.paused.queues() {
            self.held.rest(queue);
        }
        for queue in before.queues_without(&self.paused) {
            self.held.release(queue.clone());
        }
        let resumed: Vec<String> = before.topics_without(&self.paused).map(str::to_owned).collect();
        resumed.iter().for_each(|topic| self.topic_goes_on(topic));
        true
    }

    /// Returns whether the key of a queue permits its held entries from this id on to be published.
    fn lets_read(&self, queue: QueueHash, from: EntryId) -> bool {
        !self.paused.has_queue(queue) && self.stuck.lets_read(queue, from)
    }

    /// Decides what to do with a new entry.
    #[must_use]
    pub(crate) fn place(&self, topic: &str, key: Option<&str>) -> Place {
        if self.is_empty() {
            return Place::Free;
        }
        if self.is_blocked(topic) || self.busy.holds(topic) {
            return Place::Hold;
        }
        if key.is_none() {
            return Place::Free;
        }
        let queue = QueueHash::of(topic, key);
        match () {
            () if self.stuck.stops(queue) || self.paused.has_queue(queue) => Place::Hold,
            () if self.held.is_closing(queue) => Place::Wait,
            () if self.held.contains(queue) => Place::Hold,
            () => Place::Free,
        }
    }

    /// Decides about an entry of the log that is already in the window. It waits for earlier
    /// entries that were blocked after it was queued. It does not wait for later blocked entries,
    /// or those could be published first.
    #[must_use]
    pub(crate) fn place_queued(&self, topic: &str, key: Option<&str>, id: EntryId, waits: bool) -> Place {
        let queue = QueueHash::of(topic, key);
        match () {
            () if self.is_blocked(topic) && !self.is_witness(topic, id) => Place::Hold,
            () if key.is_none() => Place::Free,
            () if self.stuck.stops_entry(queue, id) || self.paused.has_queue(queue) => Place::Hold,
            () if waits && self.held.is_closing(queue) => Place::Wait,
            () if self.held.unread(queue).is_some_and(|unread| waits || unread < id) => Place::Hold,
            () => Place::Free,
        }
    }

    /// Returns whether an entry of the key is parked before this one. A due retrying entry waits
    /// for the earlier one, because an operator may have requeued the later one while the earlier
    /// one is still being retried.
    #[must_use]
    pub(crate) fn has_before(&self, key: Option<&str>, id: EntryId) -> bool {
        let Some(key) = key else { return false };
        let queue = QueueHash::of("", Some(key));
        self.stuck.stops_entry(queue, id) || self.held.unread(queue).is_some_and(|unread| unread < id)
    }

    /// Returns whether a due entry waits like the rest of its queue, and is read with it.
    #[must_use]
    pub(crate) fn stops_due(&self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        self.waits_for_probe(topic, id)
            || self.paused.has_topic(topic)
            || key.is_some() && self.paused.has_queue(QueueHash::of(topic, key))
            || self.has_before(key, id)
    }

    /// Returns whether the topic is blocked and another entry than this one is its probe, or its
    /// destination had no room.
    fn waits_for_probe(&self, topic: &str, id: EntryId) -> bool {
        self.topics.get(topic).map_or_else(|| self.busy.is_refused(topic), |probe| probe.id != id)
    }

    /// Returns whether a held entry that was read must keep waiting.
    #[must_use]
    pub(crate) fn keeps(&self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        let queue = QueueHash::of(topic, key);
        self.is_blocked(topic) && !self.is_witness(topic, id)
            || self.is_full(topic)
            || self.paused.has_queue(queue)
            || self.stuck.stops_entry(queue, id)
    }

    /// Records that an entry is stuck: its key waits for it.
    pub(crate) fn block(&mut self, key: Option<&str>, id: EntryId) {
        let Some(key) = key else { return };
        let queue = QueueHash::of("", Some(key));
        self.stuck.insert(queue, id);
        if self.held.unread(queue).is_none_or(|unread| !self.lets_read(queue, unread)) {
            self.held.rest(queue);
        }
    }

    /// Records that a submission is parked as unanswered: no message of its key may be published
    /// until it is answered or its session ends.
    pub(crate) fn give_up(&mut self, key: Option<&str>) {
        let Some(key) = key else { return };
        let queue = QueueHash::of("", Some(key));
        self.stuck.give_up(queue);
        self.held.rest(queue);
    }

    /// Records that a submission parked as unanswered was answered after all.
    pub(crate) fn answered(&mut self, key: Option<&str>) {
        let Some(key) = key else { return };
        if self.stuck.answered(QueueHash::of("", Some(key))) {
            self.held.release(QueueName::of("", Some(key)));
        }
    }

    /// Makes sure that an entry without a key is read again, because reading skipped it while it
    /// was unanswered.
    pub(crate) fn read_again(&mut self, topic: &str, id: EntryId) {
        self.held.read_again(QueueName::of(topic, None), id);
    }

    /// Records that submissions of this session will no longer be answered.
    pub(crate) fn session_ended(&mut self) {
        self.stuck.session_ended();
        self.busy.session_ended();
        self.held.release_all();
    }

    /// Records that an entry waits behind its key or topic.
    pub(crate) fn hold(&mut self, topic: &str, key: Option<&str>, id: EntryId) {
        let queue = QueueHash::of(topic, key);
        self.forget_witness(topic, id);
        // An entry that was retried and is unanswered behind another one is no longer stuck: it
        // would wait for itself.
        self.stuck.remove(queue, id);
        self.held.hold(queue, id);
        self.busy.held(topic);
        // The cursor must pass it, so nothing of its queue may wait in the window before it.
        self.held.stop(queue);
        // The entry is now the first of its queue, and nothing stops it. The entry that the queue
        // waited for may itself wait for this one.
        if self.held.unread(queue) == Some(id) {
            if !self.keeps(topic, key, id) {
                self.held.recheck(queue);
            } else if self.stops(topic) {
                self.rests(topic, QueueName::of(topic, key));
            }
        }
    }

    /// Returns whether the topic lets no entry through now.
    fn stops(&self, topic: &str) -> bool {
        self.is_blocked(topic) || self.is_full(topic)
    }

    /// Records that a queue rests because of the topic of its first entry.
    fn rests(&mut self, topic: &str, queue: QueueName) {
        let hash = QueueHash::of_name(&queue);
        let is_stored = self.held.is_stored(hash);
        let rest = Rest { takes_turns: self.busy.held(topic), is_stored, walks: self.held.walks() };
        if let Some(now) = self.topic_queues.rests(topic, queue, rest)
            && let Some(round) = self.held.round(hash)
            && *round == 0
        {
            *round = now;
        }
    }

    /// Records that a held entry that was read stays the first one of its queue. `leaves_share`:
    /// its topic is busy, and the queue has had its share.
    pub(crate) fn stopped_at(&mut self, topic: &str, queue: &QueueName, leaves_share: bool) {
        if leaves_share || self.stops(topic) {
            self.rests(topic, queue.clone());
        }
    }

    /// Records that an entry was published or discarded, or is dead and lets its key pass.
    pub(crate) fn resolve(&mut self, key: Option<&str>, id: EntryId) {
        let Some(key) = key else { return };
        let queue = QueueHash::of("", Some(key));
        if self.stuck.remove(queue, id) {
            self.held.release(QueueName::of("", Some(key)));
        }
    }

    /// Records that held entries were read back.
    pub(crate) fn read_back(&mut self) {
        self.busy.read_back();
    }

    /// Records that an entry was discarded, or confirmed while it was held. The next entry of its
    /// queue may be published.
    pub(crate) fn take_out(&mut self, topic: &str, key: Option<&str>, id: EntryId) {
        self.resolve(key, id);
        self.held.release(QueueName::of(topic, key));
    }

    /// Records that a topic does not accept messages. If the topic was not blocked, `id` becomes
    /// its probe. Returns whether `id` became the probe.
    pub(crate) fn block_topic(&mut self, topic: &str, id: EntryId) -> bool {
        let is_news = !self.topics.contains_key(topic);
        if is_news {
            self.busy.stops_waiting(topic);
            self.topics
                .insert(topic.to_owned(), Probe { id, witness: Witness::None, is_keyless_tried: false });
        }
        is_news
    }

    /// Returns whether a blocked topic waits for the retry of this entry.
    #[must_use]
    pub(crate) fn is_probe(&self, topic: &str, id: EntryId) -> bool {
        self.topics.get(topic).is_some_and(|probe| probe.id == id)
    }

    /// Leaves held entries of the topic unread until its next turn, if it is busy. Returns whether
    /// it is.
    pub(crate) fn leaves_to_next_turn(&mut self, topic: &str) -> bool {
        self.busy.held(topic)
    }

    /// Records that an entry of the topic enters the window.
    pub(crate) fn admitted(&mut self, topic: &str) {
        self.busy.admitted(topic);
    }

    /// Records that the destination of a topic had no room for an entry, see [`Busy::refused`].
    /// Returns `None` if the topic does not accept messages for another reason: then its probe
    /// decides when it does.
    pub(crate) fn saturated(
        &mut self,
        topic: &str,
        now: Duration,
        in_flight: impl FnOnce() -> usize,
    ) -> Option<bool> {
        let is_busy = !self.topics.contains_key(topic);
        is_busy.then(|| self.busy.refused(topic, now, in_flight))
    }

    /// Records that a destination that a message names itself had no room for it, see
    /// [`Busy::named_refused`].
    pub(crate) fn named_saturated(&mut self, reason: &str, now: Duration) -> bool {
        self.busy.named_refused(reason, now)
    }

    /// Returns such destinations that are no longer busy.
    pub(crate) fn named_over(&mut self, now: Duration) -> Vec<String> {
        self.busy.named_over(now)
    }

    /// Records that an entry of the topic is no longer with the publisher. A busy topic may go on.
    pub(crate) fn left(&mut self, topic: &str) {
        if self.busy.left(topic) {
            self.serve(topic);
        }
    }

    /// Records that entries have left the window without having been with the publisher, see
    /// [`Busy::moved_out`]. A busy topic may go on.
    pub(crate) fn moved_out(&mut self, has: impl Fn(&str) -> usize) {
        for topic in self.busy.moved_out(has) {
            self.serve(&topic);
        }
    }

    /// Reads held entries of a busy topic back whose turn it is.
    fn serve(&mut self, topic: &str) {
        if self.topics.contains_key(topic) || self.paused.has_topic(topic) {
            return; // until the end of that
        }
        let Turn { queues, share } = self.busy.turn(topic, self.topic_queues.len(topic));
        if queues == 0 {
            return; // until a turn begins
        }
        let mut released = 0;
        while released < queues
            && let Some(name) = self.topic_queues.next(topic)
        {
            // One that is read already has its turn, even while enough of it is in the window.
            let is_read = self.held.is_read(&name);
            released += usize::from(self.held.release_share(name, Some(share)) || is_read);
        }
        if self.topic_queues.wants_walk(topic) {
            self.held.look_for_queues();
        }
        let held = &self.held;
        if self.topic_queues.is_done(topic, |queue| held.is_moving(queue)) {
            self.busy.holds_none(topic);
        } else if released > 0 || !self.topic_queues.is_partial(topic) {
            self.busy.given(topic);
        } else {
            // A walk would find it last: names of keys come before those of topics.
            self.held.release_share(QueueName::of(topic, None), Some(share));
        }
    }

    /// Releases the queues that rest because of a topic, unless it is stopped for another reason as
    /// well.
    fn topic_goes_on(&mut self, topic: &str) {
        if self.topics.contains_key(topic) || self.paused.has_topic(topic) {
            return;
        }
        if self.busy.contains(topic) && !self.topic_queues.is_given_up(topic) {
            return self.serve(topic);
        }
        let released = self.topic_queues.release(topic);
        released.queues.into_iter().for_each(|queue| self.held.release(queue));
        if released.is_partial {
            self.held.release_all();
        }
    }

    /// Lets the busy topics go on that have waited long enough. `has` counts the entries of a topic
    /// in the window. Returns the topics that are no longer busy.
    pub(crate) fn look_at_busy(&mut self, now: Duration, has: impl Fn(&str) -> usize) -> Vec<String> {
        for topic in self.busy.waited(now, has) {
            self.serve(&topic);
        }
        let over = self.busy.over(now);
        over.iter().for_each(|topic| self.topic_goes_on(topic));
        over
    }

    /// Returns whether an entry at which a queue rests is released: its key stops it, or the queue
    /// is known as one of a topic, or a walk looks for more queues of its topic.
    #[cfg(test)]
    pub(crate) fn releases(&self, topic: &str, queue: QueueHash, id: EntryId) -> bool {
        let is_stopped = self.paused.has_queue(queue) || self.stuck.stops_entry(queue, id);
        // A queue that has had its share is one of that topic, whatever its next entry is.
        let mut topics = self.busy.names().chain([topic]);
        is_stopped
            || self.topic_queues.knows(queue)
            || topics.any(|topic| self.topic_queues.is_partial(topic))
    }

    /// Returns whether a turn of a busy topic reads held entries later.
    #[cfg(test)]
    pub(crate) fn has_a_turn_later(&self) -> bool {
        self.busy.has_a_turn_later()
    }

    /// Returns the blocked topics and their probes.
    pub(crate) fn probes(&self) -> impl Iterator<Item = (&str, &EntryId)> {
        self.topics.iter().map(|(topic, probe)| (topic.as_str(), &probe.id))
    }

    /// Records a failure of a topic that the entry may have caused. Returns whether the entry is
    /// blamed: then the failure concerns only the entry and its key. If the entry probes its topic
    /// and is suspected, the search for a witness begins.
    pub(crate) fn suspect(&mut self, topic: &str, id: EntryId) -> bool {
        self.suspects.failed(topic, id);
        if self.suspects.needs_witness(id)
            && let Some(probe) = self.topics.get_mut(topic).filter(|probe| probe.id == id)
            && !matches!(probe.witness, Witness::Chosen(_))
        {
            probe.witness = Witness::Wanted;
            self.held.search();
        }
        self.suspects.is_blamed(id)
    }

    /// Returns whether failures of this entry that it may have caused concern only itself.
    #[must_use]
    pub(crate) fn is_blamed(&self, id: EntryId) -> bool {
        self.suspects.is_blamed(id)
    }

    /// Records that the destination has answered about an entry of the topic: it confirmed the
    /// entry, or failed on it alone.
    pub(crate) fn topic_answered(&mut self, topic: &str, id: EntryId) {
        self.suspects.answered(topic, id);
    }

    /// Forgets an entry that was published or is no longer retried automatically. If it was the
    /// witness of its topic, a search for another one may begin.
    pub(crate) fn forget_suspect(&mut self, topic: &str, id: EntryId) {
        self.suspects.forget(id);
        self.forget_witness(topic, id);
    }

    fn forget_witness(&mut self, topic: &str, id: EntryId) {
        if let Some(probe) = self.topics.get_mut(topic).filter(|probe| probe.witness == Witness::Chosen(id)) {
            probe.witness = Witness::None;
        }
    }

    /// Returns whether the entry is tried although its topic is blocked.
    fn is_witness(&self, topic: &str, id: EntryId) -> bool {
        let is_chosen = |probe: &Probe| probe.witness == Witness::Chosen(id);
        self.topics.get(topic).is_some_and(is_chosen) && !self.paused.has_topic(topic)
    }

    /// Makes a held entry that was read the witness of its topic, if one is wanted and nothing but
    /// the topic stops the entry. Returns whether it is.
    pub(crate) fn take_witness(&mut self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        let queue = QueueHash::of(topic, key);
        let is_stopped = self.paused.has_topic(topic)
            || self.paused.has_queue(queue)
            || self.stuck.stops_entry(queue, id)
            || self.suspects.contains(id);
        let is_wanted = |probe: &&mut Probe| matches!(probe.witness, Witness::Wanted | Witness::Awaited);
        match self.topics.get_mut(topic).filter(is_wanted) {
            Some(probe) if !is_stopped => {
                probe.witness = Witness::Chosen(id);
                true
            }
            _ => false,
        }
    }

    /// Returns whether a queue whose first entry is this one is to be read back for a witness. Each
    /// search reads one queue. All entries behind a suspect with a key wait; behind one without a
    /// key none waits.
    fn awaits_witness(&mut self, topic: &str, first: EntryId, is_keyless: bool) -> bool {
        let is_suspect = self.suspects.contains(first);
        let may = |probe: &Probe| !is_suspect || is_keyless && !probe.is_keyless_tried;
        let is_paused = self.paused.has_topic(topic);
        match self.topics.get_mut(topic) {
            Some(probe) if probe.witness == Witness::Wanted && !is_paused && may(probe) => {
                probe.witness = Witness::Awaited;
                true
            }
            _ => false,
        }
    }

    /// Returns whether an entry without a key is passed over in the search for a witness, because
    /// it is a suspect. It must be read again.
    #[must_use]
    pub(crate) fn passes_suspect(&self, topic: &str, key: Option<&str>, id: EntryId) -> bool {
        let is_awaited = |probe: &Probe| matches!(probe.witness, Witness::Wanted | Witness::Awaited);
        key.is_none() && self.suspects.contains(id) && self.topics.get(topic).is_some_and(is_awaited)
    }

    /// Records that entries without a key were passed over, from this one on: they must be read
    /// again. If no witness was found behind them, the next search reads other queues.
    pub(crate) fn passed_suspects(&mut self, topic: &str, first: EntryId) {
        if let Some(probe) = self.topics.get_mut(topic)
            && matches!(probe.witness, Witness::Wanted | Witness::Awaited)
        {
            probe.witness = Witness::None;
            probe.is_keyless_tried = true;
        }
        self.read_again(topic, first);
    }

    /// Ends the search for witnesses if no topic wants one. If the search has found none for a
    /// topic, all its waiting entries were tried or cannot be: the next search begins anew.
    fn end_search(&mut self, exhausted: bool) {
        let Self { topics, suspects, held, .. } = self;
        if exhausted {
            for (topic, probe) in topics.iter_mut().filter(|(_, probe)| probe.witness == Witness::Wanted) {
                probe.witness = Witness::None;
                probe.is_keyless_tried = false;
                suspects.forget_witnesses(topic, probe.id);
            }
        }
        if topics.values().all(|probe| probe.witness != Witness::Wanted) {
            held.end_search();
        }
    }

    /// Unblocks a topic, because a message of it was confirmed or it no longer has a probe. Returns
    /// whether it was blocked.
    pub(crate) fn unblock_topic(&mut self, topic: &str) -> bool {
        let was_blocked = self.topics.remove(topic).is_some();
        if was_blocked {
            self.topic_goes_on(topic);
        }
        was_blocked
    }

    /// Returns the pages to request now. `has_enough` returns whether enough entries of a queue are
    /// in the window: then its key has a burst.
    pub(crate) fn asks(&mut self, has_enough: impl Fn(&QueueName) -> bool) -> Vec<HeldAsk> {
        let Self { stuck, held, bursts, paused, .. } = self;
        for (queue, _) in held.active().filter(|(_, name)| has_enough(name)) {
            bursts.begin(queue);
        }
        held.asks(|queue, from| !paused.has_queue(queue) && stuck.lets_read(queue, from), has_enough)
    }

    /// Returns whether an entry of the log that is held now belongs to a queue that gets further.
    #[must_use]
    pub(crate) fn holds_behind_others(&self, topic: &str, key: Option<&str>) -> bool {
        key.is_some() && self.held.is_moving(QueueHash::of(topic, key))
    }

    /// Returns whether bursts have this much beside the log.
    #[must_use]
    pub(crate) fn bursts_reach(&self, limit: Amount) -> bool {
        self.bursts.reach(limit, |queue| self.held.is_moving(queue))
    }

    /// Forgets the bursts that have left.
    pub(crate) fn forget_bursts(&mut self) {
        let Self { bursts, held, .. } = self;
        bursts.retain(|queue| held.contains(queue));
    }

    /// Returns queues that rest although no key stops them, each with the id from which it has not
    /// been read. Only their topics can stop them.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> Vec<(QueueHash, EntryId)> {
        let idle = self.held.idle().into_iter();
        idle.filter(|(queue, from)| self.lets_read(*queue, *from)).collect()
    }

    /// Takes in names of queues. Queues whose first entry can leave are read back.
    pub(crate) fn walked(&mut self, names: HeldQueues) {
        let last = names.queues.last().map(|queue| queue.name.clone());
        let walks = self.held.walks();
        for HeldQueue { name, topic, first } in names.queues {
            let queue = QueueHash::of_name(&name);
            self.held.found(queue);
            let Some(unread) = self.held.unread(queue) else { continue };
            if !self.lets_read(queue, unread) {
                continue;
            }
            let is_keyless = name == QueueName::of(&topic, None);
            if self.busy.contains(&topic)
                && !self.topics.contains_key(&topic)
                && !self.paused.has_topic(&topic)
            {
                if unread != first && !is_keyless {
                    // The topic of its next entry is unknown.
                    self.held.release_share(name, Some(1));
                } else if !self.held.is_moving(queue)
                    && let Some(round) = self.held.round(queue)
                {
                    self.topic_queues.found(&topic, name, round, walks);
                }
                continue;
            }
            // An entry that was already read shows nothing about the topic of the next one.
            let waits_for_topic = unread == first && self.is_blocked(&topic);
            if !waits_for_topic || self.awaits_witness(&topic, first, is_keyless) {
                self.held.release(name);
            } else if !self.held.is_moving(queue) {
                self.rests(&topic, name);
            }
        }
        let is_end = self.held.is_walking() && names.exhausted;
        self.held.walked(last, names.exhausted);
        if is_end {
            let held = &self.held;
            self.topic_queues.walked(walks, |queue| held.is_stored(queue));
        }
        for topic in self.busy.want_queues() {
            if is_end || self.topic_queues.len(&topic) >= self.busy.turn(&topic, 0).queues {
                self.serve(&topic);
            }
        }
        self.end_search(names.exhausted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: Option<&str> = Some("k");

    fn queue() -> QueueHash {
        QueueHash::of("t", K)
    }

    /// Stores the changes that hold these entries.
    fn store(blocks: &mut Blocks, ids: &[i64]) {
        ids.iter().for_each(|id| blocks.held.stored(&QueueName::of("t", K), EntryId(*id)));
    }

    fn froms(blocks: &mut Blocks) -> Vec<i64> {
        blocks.asks(|_| false).into_iter().map(|ask| ask.from.0).collect()
    }

    fn answer(blocks: &mut Blocks, from: i64, read: crate::held::Read) {
        assert!(blocks.held.answered(queue(), EntryId(from)));
        blocks.held.read(queue(), read);
    }

    use crate::held::Read::{All, StoppedAt, UpTo};

    #[test]
    fn held_entries_are_read_once_the_stuck_one_is_gone() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(1));
        blocks.hold("t", K, EntryId(2));
        store(&mut blocks, &[2]);
        assert_eq!(blocks.place("t", K), Place::Hold);
        assert_eq!(blocks.place("t", Some("other")), Place::Free);
        assert!(froms(&mut blocks).is_empty(), "the stuck entry is still there");
        blocks.resolve(K, EntryId(1));
        assert_eq!(froms(&mut blocks), [2]);
        assert_eq!(blocks.place("t", K), Place::Hold, "new entries wait until the held ones were read");
        answer(&mut blocks, 2, All);
        assert_eq!(blocks.place("t", K), Place::Free);
        assert!(blocks.is_empty());
    }

    #[test]
    fn an_entry_that_was_stuck_and_is_held_does_not_wait_for_itself() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(1));
        blocks.block(K, EntryId(3));
        blocks.hold("t", K, EntryId(3));
        store(&mut blocks, &[3]);
        assert!(froms(&mut blocks).is_empty(), "entry 1 is stuck");
        blocks.resolve(K, EntryId(1));
        assert_eq!(froms(&mut blocks), [3]);
    }

    /// Goal: keys of which enough is in the window, whose destination is slow, do not keep other
    /// queues from being read. Oracle: the queues that are asked for; two are read at once.
    #[test]
    fn a_queue_that_has_enough_gives_its_place_to_another() {
        let mut blocks = Blocks::default();
        let name = |key: &str| QueueName::of("t", Some(key));
        let asked = |blocks: &mut Blocks, enough: &[&str]| {
            let has_enough = |queue: &QueueName| enough.iter().any(|key| *queue == name(key));
            let mut names: Vec<_> = blocks.asks(has_enough).into_iter().map(|ask| ask.queue).collect();
            names.sort_unstable();
            names
        };
        let read = |blocks: &mut Blocks, queue: &QueueName| {
            let queue = QueueHash::of_name(queue);
            assert!(blocks.held.answered(queue, EntryId(1)));
            blocks.held.read(queue, UpTo(EntryId(4)));
        };
        for key in ["a", "b", "c"] {
            blocks.held.load(QueueHash::of_name(&name(key)), EntryId(1));
        }
        ["a", "b"].iter().for_each(|key| blocks.held.release(name(key)));
        assert_eq!(asked(&mut blocks, &[]), [name("a"), name("b")]);
        ["a", "b"].iter().for_each(|key| read(&mut blocks, &name(key)));
        assert!(asked(&mut blocks, &["a", "b"]).is_empty() && blocks.held.is_read(&name("a")));
        blocks.held.release(name("c"));
        assert_eq!(asked(&mut blocks, &["a", "b"]), [name("c")]);
        assert!(asked(&mut blocks, &["a", "b"]).is_empty());
        let mut later = asked(&mut blocks, &[]);
        assert_eq!(later.len(), 1, "the other one waits behind it");
        read(&mut blocks, &name("c"));
        later.extend(asked(&mut blocks, &["c"]));
        later.sort_unstable();
        assert_eq!(later, [name("a"), name("b")], "they are read once they have not enough");
    }

    /// Goal: with large messages, for which an answer has room for some queues only, none goes
    /// without. Oracle: the queue that each query names first, and the share of one that had none.
    #[test]
    fn a_queue_for_which_an_answer_had_no_room_comes_first_in_the_next_query() {
        let mut blocks = Blocks::default();
        for key in ["a", "b"] {
            let name = QueueName::of("t", Some(key));
            blocks.held.load(QueueHash::of_name(&name), EntryId(1));
            blocks.held.release_share(name, Some(9));
        }
        let mut firsts = Vec::new();
        for _ in 0..4 {
            let asks = blocks.asks(|_| false);
            assert_eq!(asks.len(), 2);
            for (ask, entries) in asks.iter().zip([5, 0]) {
                let queue = QueueHash::of_name(&ask.queue);
                assert!(blocks.held.answered(queue, ask.from));
                blocks.held.read(queue, UpTo(EntryId(ask.from.0 + entries - 1)));
            }
            if firsts.is_empty() {
                let left_out = QueueHash::of_name(&asks[1].queue);
                assert_eq!(blocks.held.share(left_out), Some(9));
            }
            firsts.push(asks[0].queue.clone());
        }
        assert!(firsts[0] == firsts[2] && firsts[1] == firsts[3] && firsts[0] != firsts[1], "{firsts:?}");
    }

    #[test]
    fn new_entries_wait_while_the_last_held_ones_are_not_stored() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(1));
        blocks.hold("t", K, EntryId(2));
        blocks.resolve(K, EntryId(1));
        assert!(froms(&mut blocks).is_empty() && blocks.held.wants_store(), "it cannot be read yet");
        store(&mut blocks, &[2]);
        assert_eq!(froms(&mut blocks), [2]);
        blocks.hold("t", K, EntryId(3));
        answer(&mut blocks, 2, UpTo(EntryId(2)));
        assert!(froms(&mut blocks).is_empty());
        assert_eq!(blocks.place("t", K), Place::Hold, "more may be stored");
        store(&mut blocks, &[3]);
        assert_eq!(froms(&mut blocks), [3]);
        blocks.hold("t", K, EntryId(4));
        answer(&mut blocks, 3, All);
        assert_eq!(blocks.place("t", K), Place::Wait);
        assert!(blocks.held.wants_store() && froms(&mut blocks).is_empty(), "it cannot be read yet");
        store(&mut blocks, &[4]);
        assert_eq!(froms(&mut blocks), [4]);
        answer(&mut blocks, 4, All);
        assert!(blocks.is_empty());
    }

    #[test]
    fn what_was_held_before_the_place_of_a_question_makes_its_answer_void() {
        let mut blocks = Blocks::default();
        blocks.held.load(queue(), EntryId(5));
        blocks.held.release(QueueName::of("t", K));
        assert_eq!(froms(&mut blocks), [5]);
        blocks.hold("t", K, EntryId(4));
        assert!(!blocks.held.answered(queue(), EntryId(5)));
        store(&mut blocks, &[4]);
        assert_eq!(froms(&mut blocks), [4]);
    }

    #[test]
    fn what_was_stored_since_the_question_is_asked_for_again() {
        let mut blocks = Blocks::default();
        blocks.held.load(queue(), EntryId(5));
        blocks.held.release(QueueName::of("t", K));
        assert_eq!(froms(&mut blocks), [5]);
        blocks.hold("t", K, EntryId(7));
        store(&mut blocks, &[7]);
        answer(&mut blocks, 5, All);
        assert_eq!(blocks.place("t", K), Place::Wait, "entry 7 need not be in the answer");
        assert_eq!(froms(&mut blocks), [7]);
    }

    #[test]
    fn an_answer_ends_before_what_was_stored_since_the_question_and_is_not_shown() {
        for (is_seen, next) in [(false, Some(EntryId(7))), (true, None)] {
            let mut blocks = Blocks::default();
            blocks.held.load(queue(), EntryId(5));
            blocks.held.release(QueueName::of("t", K));
            assert_eq!(froms(&mut blocks), [5]);
            blocks.hold("t", K, EntryId(7));
            store(&mut blocks, &[7]);
            assert!(blocks.held.answered(queue(), EntryId(5)));
            assert_eq!(blocks.held.shown(queue(), EntryId(5)), None);
            if is_seen {
                assert_eq!(blocks.held.shown(queue(), EntryId(7)), None);
            }
            // It was held long ago, behind entry 7.
            assert_eq!(blocks.held.shown(queue(), EntryId(9)), next);
        }
    }

    #[test]
    fn a_blocked_topic_holds_its_entries_and_the_keys_behind_them() {
        let mut blocks = Blocks::default();
        assert!(blocks.block_topic("missing", EntryId(1)));
        assert!(!blocks.block_topic("missing", EntryId(2)));
        assert!(blocks.is_probe("missing", EntryId(1)) && !blocks.is_probe("missing", EntryId(2)));
        assert_eq!(blocks.place("missing", None), Place::Hold);
        assert_eq!(blocks.place("other", None), Place::Free);
        blocks.hold("missing", K, EntryId(5));
        assert_eq!(blocks.place("other", K), Place::Hold, "its key waits behind entry 5");
        assert!(blocks.unblock_topic("missing"));
        assert!(froms(&mut blocks).is_empty(), "nothing is stored");
        store(&mut blocks, &[5]);
        assert_eq!(froms(&mut blocks), [5]);
        blocks.block_topic("missing", EntryId(9));
        answer(&mut blocks, 5, StoppedAt(EntryId(5)));
        assert_eq!(blocks.place("other", K), Place::Hold);
    }

    /// Goal: the end of a topic's stop or pause costs no more than the queues of the topic, however
    /// many of others are held. Oracle: the queues that are read, and whether names are asked for.
    #[test]
    fn a_topic_goes_on_without_a_look_at_the_queues_of_others() {
        let mut blocks = Blocks::default();
        let hold = |blocks: &mut Blocks, topic: &str, key: Option<&str>, id| {
            blocks.hold(topic, key, EntryId(id));
            blocks.held.stored(&QueueName::of(topic, key), EntryId(id));
        };
        blocks.block_topic("down", EntryId(1));
        (2..100).for_each(|id| hold(&mut blocks, "down", Some(&id.to_string()), id));
        let pause = Paused::of([outbox_log::PauseScope::Topic("t".into())]);
        for is_pause in [false, true] {
            if is_pause {
                blocks.set_paused(pause.clone());
            } else {
                blocks.block_topic("t", EntryId(100));
            }
            hold(&mut blocks, "t", K, 101);
            hold(&mut blocks, "t", None, 102);
            assert!(froms(&mut blocks).is_empty());
            if is_pause {
                blocks.set_paused(Paused::default());
            } else {
                blocks.unblock_topic("t");
            }
            let mut read = froms(&mut blocks);
            read.sort_unstable();
            assert_eq!(read, [101, 102]);
            assert_eq!(blocks.held.wanted_names(), None);
            answer(&mut blocks, 101, All);
            let keyless = QueueHash::of("t", None);
            assert!(blocks.held.answered(keyless, EntryId(102)));
            blocks.held.read(keyless, All);
        }
        blocks.unblock_topic("down");
        assert_eq!(blocks.held.wanted_names(), Some(None), "there are too many of them to remember");
    }

    #[test]
    fn a_key_goes_on_when_its_pause_ends() {
        let mut blocks = Blocks::default();
        blocks.set_paused(Paused::of([outbox_log::PauseScope::Key("k".into())]));
        blocks.hold("t", K, EntryId(2));
        store(&mut blocks, &[2]);
        assert!(froms(&mut blocks).is_empty());
        blocks.set_paused(Paused::default());
        assert_eq!((froms(&mut blocks), blocks.held.wanted_names()), (vec![2], None));
    }

    #[test]
    fn what_is_queued_waits_only_for_what_stands_before_it() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(2));
        let queued = |blocks: &Blocks, id| blocks.place_queued("t", K, EntryId(id), false);
        assert_eq!(queued(&blocks, 1), Place::Free, "it must leave before entry 2");
        assert_eq!(queued(&blocks, 3), Place::Hold);
        blocks.block_topic("t", EntryId(2));
        assert_eq!(queued(&blocks, 1), Place::Hold);
    }

    #[test]
    fn an_entry_held_before_a_stuck_one_leaves_before_it() {
        let mut blocks = Blocks::default();
        blocks.block(K, EntryId(5));
        blocks.hold("t", K, EntryId(4));
        assert!(blocks.has_before(K, EntryId(5)), "entry 5 waits for entry 4");
        assert!(froms(&mut blocks).is_empty());
        store(&mut blocks, &[4]);
        assert_eq!(froms(&mut blocks), [4]);
        answer(&mut blocks, 4, All);
        assert!(!blocks.has_before(K, EntryId(5)));
        assert_eq!(blocks.place("t", K), Place::Hold, "entry 5 is still stuck");
    }

    #[test]
    fn the_policy_decides_whether_a_dead_entry_blocks() {
        let dead = ExceptionSummary { id: EntryId(1), key: Some("k".into()), state: ExceptionState::Dead };
        let place = |policy| {
            let mut blocks = Blocks::default();
            blocks.load(&dead, policy);
            blocks.place("t", K)
        };
        assert_eq!((place(DeadPolicy::Hold), place(DeadPolicy::Pass)), (Place::Hold, Place::Free));
    }
}
