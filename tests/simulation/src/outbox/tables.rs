//! The tables of the relays' database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use checker::LeaseEvent;
use message::{Message, MessageId};
use outbox_log::{Cursor, Entry, EntryId, Exception, ExceptionState, InvalidEntry, Parked};
use tokio::time::Instant;

use super::history::{commits_at, mark};
use crate::process::ProcessId;
use crate::schedule::MISSING;

/// A row of the log.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) message: Message,
    pub(crate) deliver_at: Option<Instant>,
    /// The commit that made it visible; `None` while its transaction is open.
    pub(crate) commit: Option<u64>,
    /// Whether retention has removed its content.
    pub(crate) is_removed: bool,
}

/// An exception.
#[derive(Debug, Clone)]
pub(crate) struct ParkedEntry {
    pub(crate) parked: Parked,
    pub(crate) due_at: Option<Instant>,
    /// The content, copied when it was parked. An operator's edit changes it.
    pub(crate) copy: Option<Message>,
}

/// The relay's row.
#[derive(Debug, Clone)]
pub(crate) struct RelayRow {
    pub(crate) epoch: i64,
    pub(crate) holder: Option<(ProcessId, Instant)>,
    pub(crate) cursor: Cursor,
}

/// The tables. A mark is the number of commits in a history: the same information as a snapshot, in
/// another notation.
#[derive(Debug, Clone)]
pub(crate) struct OutboxTables {
    pub(crate) rows: BTreeMap<i64, Row>,
    pub(crate) last_id: i64,
    pub(crate) commits: u64,
    pub(crate) relay: RelayRow,
    pub(crate) exceptions: BTreeMap<EntryId, ParkedEntry>,
    /// Messages that an operator discarded.
    pub(crate) discarded: BTreeSet<MessageId>,
    pub(crate) edited: BTreeSet<MessageId>,
    pub(crate) down_until: Option<Instant>,
    pub(crate) leases: Vec<LeaseEvent>,
    /// Rows behind the cursor that were checked.
    pub(super) passed: BTreeSet<i64>,
    /// The last id that was read.
    pub(super) read_to: i64,
    /// Number of times that the database went back.
    pub(crate) history: u64,
    /// The first history whose connections still work.
    pub(super) connected_since: u64,
    /// Messages that were discarded before the database went back, and are not discarded after it.
    /// Later messages of their keys were published meanwhile.
    pub(crate) given_back: BTreeSet<MessageId>,
    /// Messages of transactions that were undone when the database went back.
    pub(crate) undone: BTreeSet<MessageId>,
}

impl Default for OutboxTables {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
            last_id: 0,
            commits: 0,
            relay: RelayRow { epoch: 0, holder: None, cursor: Cursor::at(mark(0, 0)) },
            exceptions: BTreeMap::new(),
            discarded: BTreeSet::new(),
            edited: BTreeSet::new(),
            down_until: None,
            leases: Vec::new(),
            passed: BTreeSet::new(),
            read_to: 0,
            history: 0,
            connected_since: 0,
            given_back: BTreeSet::new(),
            undone: BTreeSet::new(),
        }
    }
}

impl OutboxTables {
    /// Inserts a row, which is invisible until its transaction commits.
    pub(crate) fn insert(&mut self, message: Message, deliver_at: Option<Instant>) -> i64 {
        self.last_id += 1;
        let row = Row { message, deliver_at, commit: None, is_removed: false };
        self.rows.insert(self.last_id, row);
        self.last_id
    }

    pub(crate) fn commit(&mut self, ids: &[i64]) {
        self.commits += 1;
        for id in ids {
            if let Some(row) = self.rows.get_mut(id) {
                row.commit = Some(self.commits);
            }
        }
    }

    pub(crate) fn roll_back(&mut self, ids: &[i64]) {
        for id in ids {
            self.rows.remove(id);
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether a cursor has passed a row.
    pub(crate) fn is_passed(cursor: &Cursor, id: i64, row: &Row) -> bool {
        let Some(commit) = row.commit else { return false };
        let is_inside = cursor
            .progress
            .as_ref()
            .is_some_and(|progress| commit <= commits_at(&progress.head) && id <= progress.after);
        commit <= commits_at(&cursor.base) || is_inside
    }

    /// Returns an exception with its content, as the relay reads it.
    pub(super) fn exception(&self, id: EntryId, aside: &ParkedEntry) -> Exception {
        let gone = || InvalidEntry {
            message_id: aside.parked.message_id.clone(),
            topic: aside.parked.topic.clone(),
            key: aside.parked.key.clone(),
            kind: None,
            problem: String::from("its row is gone"),
        };
        let entry = Entry { id, message: aside.copy.clone().ok_or_else(gone), deliver_in: None };
        Exception { entry, state: aside.parked.state, attempts: aside.parked.attempts }
    }

    /// Returns the number of held entries.
    pub(super) fn held_len(&self) -> usize {
        let is_held = |aside: &&ParkedEntry| aside.parked.state == ExceptionState::Held;
        self.exceptions.values().filter(is_held).count()
    }

    /// Returns the first dead entry.
    pub(crate) fn first_dead(&self) -> Option<EntryId> {
        let is_dead = |aside: &ParkedEntry| aside.parked.state == ExceptionState::Dead;
        self.exceptions.iter().find(|(_, aside)| is_dead(aside)).map(|(id, _)| *id)
    }

    /// Returns whether the relay has nothing left to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.exceptions.is_empty() && self.is_quiet_but_for_missing()
    }

    /// Returns whether the relay waits only for the missing topic.
    pub(crate) fn is_quiet_but_for_missing(&self) -> bool {
        let is_passed = |(id, row): (&i64, &Row)| Self::is_passed(&self.relay.cursor, *id, row);
        let missing = format!("t{MISSING}");
        self.exceptions.values().all(|aside| aside.parked.topic == missing) && self.rows.iter().all(is_passed)
    }

    /// Returns the name of the lease for the checker. It contains the history, because epochs are
    /// assigned again in another one.
    pub(super) fn lease(&self) -> Arc<str> {
        Arc::from(format!("relay in history {}", self.history))
    }

    pub(super) fn wrote(&mut self, process: ProcessId, epoch: i64, is_applied: bool, what: &str) {
        self.leases.push(LeaseEvent::Wrote {
            lease: self.lease(),
            epoch: u64::try_from(epoch).unwrap_or_default(),
            holder: Arc::from(process.to_string()),
            applied: is_applied,
            what: what.into(),
        });
    }
}
