//! Reconciles all sightings of one message. Pure.

use std::collections::{BTreeMap, BTreeSet};

use inbox::reconcile::Unfinished;
use outbox_log::ExceptionState;
use outbox_log::reconcile::Stage;
use uuid::Uuid;

/// The sightings of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: Uuid,
    pub(super) outbox: Option<Stored>,
    /// At the broker, in the part that was read.
    pub(super) broker: Option<Copies>,
    /// Partition and offset of the first copy there.
    pub(super) position: Option<(i32, i64)>,
    /// In each inbox, in the order of [`Context::inboxes`].
    pub(super) inboxes: Vec<Applied>,
}

/// The outbox row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) stage: Stage,
    pub(super) topic: String,
    pub(super) kind: String,
    pub(super) fingerprint: Vec<u8>,
    pub(super) edited: bool,
}

/// The copies of a message in one place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) times: u64,
    /// The fingerprint of the first copy.
    pub(super) fingerprint: Vec<u8>,
    /// Whether another copy has a different fingerprint.
    pub(super) differ: bool,
}

/// The information of one inbox about a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Applied {
    /// One row for each scope.
    pub(super) remembered: Option<Copies>,
    pub(super) effects: u64,
    /// The message is retried, or a dead letter: an operator can see it.
    pub(super) unfinished: Option<Unfinished>,
}

/// The facts about the places that decide which findings count.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    /// Only messages of these topics are reconciled; if empty, all.
    pub(super) topics: BTreeSet<String>,
    /// The smallest id in the outbox. Nothing is known about smaller ids.
    pub(super) outbox_from: Option<Uuid>,
    /// From these ids on, everything published is in the part of the broker that was read; of other
    /// topics, everything. `None` when the broker was not read.
    pub(super) broker_from: Option<BTreeMap<String, Uuid>>,
    pub(super) inboxes: Vec<InboxContext>,
}

/// The next record that a consumer group reads, by topic and partition.
pub(super) type Committed = BTreeMap<String, BTreeMap<i32, i64>>;

/// The facts about an inbox that decide which findings count.
#[derive(Debug, Clone, Default)]
pub(super) struct InboxContext {
    /// The topics that its consumer applies; if empty, all.
    pub(super) topics: BTreeSet<String>,
    /// The smallest id that it still remembers.
    pub(super) remembers_from: Option<Uuid>,
    /// Whether no consumer has opened it yet: nothing is expected in it.
    pub(super) is_unopened: bool,
    /// Whether its effects were read.
    pub(super) has_effects: bool,
    /// The event types whose effects were read; if empty, all.
    pub(super) effects_kinds: BTreeSet<String>,
    /// The next record that its consumer group reads, by topic and partition, read before the
    /// inbox. `None` when it is unknown.
    pub(super) committed: Option<Committed>,
}

impl InboxContext {
    /// Returns whether its consumer has not reached a message of this topic yet.
    fn waits(&self, topic: &str, position: Option<(i32, i64)>) -> bool {
        let Some((committed, (partition, offset))) = self.committed.as_ref().zip(position) else {
            return false;
        };
        // The name of a group that has committed nothing for a topic may be misspelt.
        let Some(partitions) = committed.get(topic).filter(|partitions| !partitions.is_empty()) else {
            return false;
        };
        partitions.get(&partition).is_none_or(|next| offset >= *next)
    }
}

/// The place of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Broker,
    /// An inbox, by its index in [`Context::inboxes`].
    Inbox(usize),
}

/// A fault of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The cursor has passed it, and the broker does not have it.
    Unpublished,
    /// It is published, and the inbox does not have it.
    Unapplied,
    /// It is in the inbox, without an effect.
    Effectless,
    /// It took effect, and the inbox does not have it.
    Unremembered,
    /// It took effect more than once.
    Doubled,
    /// It exists, but is not in the outbox.
    Phantom,
    /// Its fingerprint differs from the outbox.
    Altered,
}

impl Kind {
    /// Returns the column that counts it.
    pub(super) fn column(self) -> &'static str {
        match self {
            Self::Unpublished | Self::Unapplied | Self::Effectless | Self::Unremembered => "missing",
            Self::Doubled => "doubled",
            Self::Phantom => "phantom",
            Self::Altered => "altered",
        }
    }

    /// Returns whether the message may still be on its way.
    pub(super) fn may_pass(self) -> bool {
        matches!(self, Self::Unapplied | Self::Effectless)
    }

    /// Returns the text for people, to follow the name of the place.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Unpublished => "the relay has published it, but the broker does not have it",
            Self::Unapplied => "published, but not in the inbox",
            Self::Effectless => "in the inbox, but without an effect",
            Self::Unremembered => "took effect, but is not in the inbox",
            Self::Doubled => "took effect more than once",
            Self::Phantom => "exists, but is not in the outbox",
            Self::Altered => "differs from the outbox",
        }
    }
}

/// The state of a message at the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageState {
    Published,
    Pending,
    Parked,
    /// An operator gave it up: it need not be anywhere. An attempt before the decision may have
    /// arrived.
    Discarded,
}

/// The verdict on a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reconciled {
    /// `None` for a message that is not in the outbox, or older than all of it.
    pub(super) fate: Option<MessageState>,
    pub(super) wrong: Vec<(Place, Kind)>,
    /// The inboxes whose consumers have not reached it yet.
    pub(super) waits: Vec<usize>,
}

/// Reconciles one message. Returns `None` for a message outside of the comparison.
pub(super) fn reconcile(seen: &Seen, context: &Context) -> Option<Reconciled> {
    match &seen.outbox {
        Some(stored) if stored.stage == Stage::LeftOut => None,
        Some(stored) if !is_among(&context.topics, &stored.topic) => None,
        Some(stored) => Some(reconcile_stored(seen, stored, context)),
        None if context.outbox_from.is_none_or(|from| seen.id < from) => None,
        None => Some(Reconciled { fate: None, wrong: phantoms(seen), waits: Vec::new() }),
    }
}

/// Returns whether a set contains a name. An empty set contains all.
fn is_among(names: &BTreeSet<String>, name: &str) -> bool {
    names.is_empty() || names.contains(name)
}

fn phantoms(seen: &Seen) -> Vec<(Place, Kind)> {
    let broker = seen.broker.iter().map(|_| Place::Broker);
    let inboxes = seen.inboxes.iter().enumerate();
    let inboxes = inboxes.filter(|(_, applied)| applied.remembered.is_some() || applied.effects > 0);
    broker.chain(inboxes.map(|(place, _)| Place::Inbox(place))).map(|place| (place, Kind::Phantom)).collect()
}

fn reconcile_stored(seen: &Seen, stored: &Stored, context: &Context) -> Reconciled {
    use ExceptionState::{Dead, Discarded, Held, Retrying, Scheduled};
    let fate = match stored.stage {
        Stage::Passed | Stage::LeftOut => MessageState::Published,
        Stage::Ahead | Stage::Beside(Scheduled | Retrying) => MessageState::Pending,
        Stage::Beside(Held | Dead) => MessageState::Parked,
        // An attempt before the decision reached the broker, so consumers get the message.
        Stage::Discarded if seen.broker.is_some() => MessageState::Published,
        Stage::Discarded | Stage::Beside(Discarded) => MessageState::Discarded,
    };
    let (mut wrong, mut waits) = (Vec::new(), Vec::new());
    let is_read = context
        .broker_from
        .as_ref()
        .is_some_and(|cut| cut.get(&stored.topic).is_none_or(|from| seen.id >= *from));
    let is_lost = fate == MessageState::Published && is_read && seen.broker.is_none();
    if is_lost {
        wrong.push((Place::Broker, Kind::Unpublished));
    }
    if is_altered(seen.broker.as_ref(), stored) {
        wrong.push((Place::Broker, Kind::Altered));
    }
    for (place, (applied, inbox)) in seen.inboxes.iter().zip(&context.inboxes).enumerate() {
        let is_due = fate == MessageState::Published
            && !is_lost
            && !inbox.is_unopened
            && is_among(&inbox.topics, &stored.topic);
        let remembers = inbox.remembers_from.is_none_or(|from| seen.id >= from);
        let is_covered = inbox.has_effects && is_among(&inbox.effects_kinds, &stored.kind);
        let kinds = reconcile_inbox(applied, is_covered, is_due, remembers).into_iter();
        let altered = is_altered(applied.remembered.as_ref(), stored).then_some(Kind::Altered);
        for kind in kinds.flatten().chain(altered) {
            match kind {
                Kind::Unapplied if inbox.waits(&stored.topic, seen.position) => waits.push(place),
                kind => wrong.push((Place::Inbox(place), kind)),
            }
        }
    }
    Reconciled { fate: Some(fate), wrong, waits }
}

/// Returns at most one fault of presence and one of number. `is_covered`: the effects were read.
fn reconcile_inbox(applied: &Applied, is_covered: bool, is_due: bool, remembers: bool) -> [Option<Kind>; 2] {
    let scopes = applied.remembered.as_ref().map_or(0, |copies| copies.times);
    let presence = match (scopes, applied.effects) {
        (0, 1..) if remembers => Some(Kind::Unremembered),
        (0, 0) if is_due && remembers && applied.unfinished.is_none() => Some(Kind::Unapplied),
        (1.., 0) if is_covered => Some(Kind::Effectless),
        _ => None,
    };
    let number = (applied.effects > scopes.max(1)).then_some(Kind::Doubled);
    [presence, number]
}

/// Returns whether the content differs from the outbox. An edited message may exist in either
/// version.
fn is_altered(copies: Option<&Copies>, stored: &Stored) -> bool {
    let differ = |copies: &Copies| copies.differ || copies.fingerprint != stored.fingerprint;
    !stored.edited && copies.is_some_and(differ)
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
