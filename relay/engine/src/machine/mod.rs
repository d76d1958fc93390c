//! The relay's decisions: what to publish next, what every outcome means, where the cursor stands.
//!
//! A state machine without its own I/O, clock or randomness: the driver feeds it pages, due and
//! held exceptions and receipts, and takes submissions and checkpoints out of it. All decisions
//! about order and loss are made here and in the pure modules below it.
//!
//! # Why order cannot break
//! Entries of a key enter in the order of the log. A key with anything parked (retrying, held,
//! dead) takes no direct entries: they are held as well, and leave the exceptions in the order of
//! their ids. So the first occurrences of a key in the broker are in log order, whatever fails in
//! between. The same holds for an older relay process that has not noticed its successor and still
//! sends: both send contiguous runs that start at or below the last checkpoint.
//!
//! A change of an exception is stored only together with a cursor that has passed its entry. So a
//! successor never finds an exception ahead of its cursor, which it could send before entries that
//! it has yet to read again.
//!
//! Held entries are only in the database. `held.rs` tracks their queues. Like ADR 21, it explains
//! how they come back without a gap and without overtaking.
//!
//! | file | what it decides |
//! |---|---|
//! | `shares.rs` | what is held because its key has more than its share of the window |
//! | `shared_ids.rs` | whether two entries share an id |
//! | `intake.rs` | what happens to entries and exceptions that were read |
//! | `submissions.rs` | what is handed to the publisher, and which queued entries are held after all |
//! | `refused.rs` | when messages that were refused before are tried again |
//! | `outcomes.rs` | what a receipt means |
//! | `silent.rs` | what happens to messages whose destination does not answer |
//! | `checkpoint.rs` | what is parked, and what is stored together |
//! | `transaction.rs` | what is committed together with messages |
//! | `unstored.rs` | which changes the database does not have yet |
//! | `session.rs` | what is in flight, and why the session must end |

mod checkpoint;
mod intake;
mod outcomes;
mod refused;
mod session;
mod shared_ids;
mod shares;
mod silent;
mod submissions;
mod transaction;
mod unstored;

use std::collections::{BTreeSet, HashSet};

use message::{MaxInFlightPerKey, MessageId};
use outbox_log::{Cursor, DueKind, EntryId};

use crate::blocks::Blocks;
use crate::event::{Event, Load};
use crate::failures::Failures;
use crate::key_queues::KeyQueues;
use crate::options::EngineOptions;
use crate::silence::Silence;
use crate::window::Window;

use refused::Refused;
use session::Session;
use silent::Silent;
use unstored::Unstored;

pub(crate) use checkpoint::Checkpoint;
pub(crate) use session::SessionEnd;
pub(crate) use transaction::TransactionCheckpoint;

/// Divisor of the window: this share belongs to held entries while some are read back.
const HELD_SHARE: usize = 4;

/// Divisor of the window: due entries of each kind take at most this share, so that those of a slow
/// or failing destination, however many are retried, leave room for the log and for what is
/// scheduled.
const DUE_SHARE: usize = 4;

/// Divisor of the window: this share belongs to the log, so that held and due entries cannot leave
/// it nothing together.
const LOG_SHARE: usize = 4;

/// The state machine of one lease.
#[derive(Debug)]
pub struct Machine {
    settings: EngineOptions,
    window: Window,
    key_queues: KeyQueues,
    /// Entries that are not queued yet, because they were refused before.
    refused: Refused,
    blocks: Blocks,
    /// Exceptions that are in the window, so that a second read of them is recognised.
    readmitted: HashSet<EntryId>,
    unstored: Unstored,
    failures: Failures,
    stored: Cursor,
    session: Session,
    /// Whether something was blocked, so that queued entries must be checked again before the next
    /// submission.
    requeue: bool,
    /// Whether a session has pipelined the messages of a key. Such a broker gets them one by one
    /// only to find a culprit.
    is_pipelined: bool,
    silence: Silence,
    silent: Silent,
    read: Read,
    events: Vec<Event>,
}

/// Progress of reading the log. Invariant: two entries in the window or among the changes have
/// different ids, or `shared` names their id.
#[derive(Debug, Default)]
struct Read {
    /// The last entry that was read, until the cursor has passed it.
    last: Option<(EntryId, MessageId)>,
    /// The highest id that was read.
    highest: EntryId,
    /// The id that two entries share. Once it is set, nothing more is stored.
    shared: Option<EntryId>,
    /// Entries that were published in a transaction of a previous leader and are still to be read:
    /// they are passed without publishing.
    left_before: BTreeSet<EntryId>,
}

impl Machine {
    /// Creates the state after taking the lease: at the stored cursor, with the blocks that the
    /// database knows.
    #[must_use]
    pub(crate) fn new(settings: EngineOptions, cursor: Cursor, mut blocks: Blocks) -> Self {
        blocks.held.release_all();
        Self {
            window: Window::new(
                cursor.clone(),
                settings.window_bytes,
                settings.window_entries,
                settings.checkpoint_changes,
            ),
            key_queues: KeyQueues::new(MaxInFlightPerKey::One),
            refused: Refused::default(),
            blocks,
            readmitted: HashSet::new(),
            unstored: Unstored::default(),
            failures: Failures::default(),
            stored: cursor,
            session: Session::default(),
            requeue: false,
            is_pipelined: false,
            silence: Silence::new(settings.silent_after),
            silent: Silent::default(),
            read: Read::default(),
            events: Vec::new(),
            settings,
        }
    }

    /// Records that messages are published in transactions, and that these entries ahead of the
    /// cursor have already been published.
    #[must_use]
    pub(crate) fn with_left_before(mut self, entries: BTreeSet<EntryId>) -> Self {
        self.read.left_before = entries;
        self.refused.keep_turn = true;
        self
    }

    /// Returns whether another page of the log may be taken in. While held entries are read back,
    /// part of the window is reserved for them: otherwise the log could fill it with entries that
    /// wait for them. So does the log while bursts have much beside it (`shares.rs`).
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        // While nothing shows that the broker works, a guess must not park the whole backlog.
        let is_bold = self.silence.is_guess() && self.silent.held_on_a_guess >= self.settings.window_entries;
        self.has_room_in_window() && self.has_room_for_changes() && !is_bold && !self.has_held_enough()
    }

    /// Returns whether the window has room for entries of the log.
    fn has_room_in_window(&self) -> bool {
        self.window.has_room(self.blocks.held.is_reading().then_some(HELD_SHARE))
            || self.window.has_room(None) && self.window.has_room_for_log(LOG_SHARE)
    }

    /// Returns whether parked entries, held or due, may be taken in. Each published one adds a
    /// change, and they could be published faster than changes are stored.
    #[must_use]
    pub(crate) fn has_room_for_exceptions(&self) -> bool {
        self.window.has_room(None) && self.has_room_for_changes()
    }

    /// Returns whether held entries may be read back. They use no more of the window than is
    /// reserved for them. Otherwise entries of other keys would have to wait behind all of them.
    #[must_use]
    pub(crate) fn has_room_for_held(&self) -> bool {
        self.has_room_for_exceptions() && self.window.has_room_for_held(HELD_SHARE)
    }

    /// Returns whether due entries of this kind may be read.
    #[must_use]
    pub(crate) fn has_room_for_due(&self, kind: DueKind) -> bool {
        self.has_room_for_exceptions() && self.window.has_room_for_due(kind, DUE_SHARE)
    }

    /// Returns whether reading may add to the changes that are not stored.
    fn has_room_for_changes(&self) -> bool {
        self.unstored_len() < self.settings.unstored_max
    }

    /// Returns the number of changes that are not stored.
    #[must_use]
    pub fn unstored_len(&self) -> usize {
        self.unstored.len()
    }

    /// Returns the number of parked entries that are in the window.
    #[must_use]
    pub(crate) fn readmitted_len(&self) -> usize {
        self.readmitted.len()
    }

    /// Returns the number of entries that were read and are not settled.
    #[must_use]
    pub fn open_len(&self) -> usize {
        self.window.open_len()
    }

    /// Returns the number of entries that the publisher has not answered.
    #[must_use]
    pub fn in_flight_len(&self) -> usize {
        self.session.in_flight_len()
    }

    /// Returns the current load.
    #[must_use]
    pub fn load(&self) -> Load {
        Load {
            in_flight: self.session.in_flight_len(),
            window_entries: self.open_len(),
            window_bytes: self.window.bytes(),
            blocked_keys: self.blocks.keys_len(),
            blocked_topics: self.blocks.topics_len(),
            busy_topics: self.blocks.busy_len(),
            unanswered: self.silent.awaited.len(),
        }
    }

    /// Returns whether an operator has paused everything.
    #[must_use]
    pub(crate) fn is_paused(&self) -> bool {
        self.blocks.is_pipeline_paused()
    }

    /// Takes the events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod busy;
#[cfg(test)]
mod publisher_bound;
#[cfg(test)]
mod stalls;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod witnesses;
#[cfg(test)]
mod world;
