//! A history indexed by ids. It is built once and used by every check.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::history::{Content, Enqueued, History, Operation, OutboxRow, Outcome, ParkedEntry};

/// Counts of the operations that claim to have written a message or a business row and kept it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    done: u32,
    failed: u32,
    unknown: u32,
}

impl Claims {
    fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Ok => &mut self.done,
            Outcome::Failed => &mut self.failed,
            Outcome::Unknown => &mut self.unknown,
        } += 1;
    }

    /// Returns whether the message or row may exist.
    pub(crate) fn is_possible(self) -> bool {
        self.done + self.unknown > 0
    }

    /// Returns whether only an operation with this outcome can have written the message or row.
    pub(crate) fn is_only(self, outcome: Outcome) -> bool {
        let mine = u32::from(outcome != Outcome::Failed);
        self.done + self.unknown == mine
    }
}

/// The position of a message in its key's order, if it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// The number of the message within the key.
    pub(crate) seq: Option<u64>,
    /// The time at which the transaction of the message began.
    pub(crate) started: Option<u64>,
    /// The time at which the transaction was known to be committed.
    pub(crate) ended: Option<u64>,
}

/// The index of a history.
pub(crate) struct Index<'a> {
    pub(crate) history: &'a History,
    pub(crate) outbox: HashMap<Uuid, &'a OutboxRow>,
    pub(crate) removed: HashSet<Uuid>,
    pub(crate) parked: HashMap<Uuid, ParkedEntry>,
    pub(crate) published: HashSet<Uuid>,
    pub(crate) business: HashSet<&'a str>,
    pub(crate) messages: HashMap<Uuid, Claims>,
    pub(crate) rows: HashMap<&'a str, Claims>,
    enqueued: HashMap<Uuid, (&'a Operation, &'a Enqueued)>,
    undone: HashSet<Uuid>,
    forgotten: HashSet<Uuid>,
    forgotten_rows: HashSet<&'a str>,
}

impl<'a> Index<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let mut index = Self {
            history,
            outbox: history.outbox.iter().flatten().map(|row| (row.id, row)).collect(),
            removed: history.removed.iter().flatten().copied().collect(),
            parked: history.parked.iter().flatten().map(|parked| (parked.id, parked.state)).collect(),
            published: HashSet::new(),
            business: history.business.iter().flatten().map(|row| &*row.id).collect(),
            messages: HashMap::new(),
            rows: HashMap::new(),
            enqueued: HashMap::new(),
            undone: HashSet::new(),
            forgotten: history.forgotten.messages.iter().copied().collect(),
            forgotten_rows: history.forgotten.rows.iter().map(|row| &**row).collect(),
        };
        index.published.extend(
            history
                .topic_read
                .iter()
                .flat_map(|topic_read| &topic_read.occurrences)
                .filter_map(|seen| seen.id),
        );
        history.operations.iter().flatten().for_each(|operation| index.claim(operation));
        index
    }

    fn claim(&mut self, operation: &'a Operation) {
        for row in &operation.rows {
            self.rows.entry(row).or_default().add(operation.outcome);
        }
        self.undone.extend(&operation.undone_messages);
        for message in &operation.messages {
            self.messages.entry(message.id).or_default().add(operation.outcome);
            // If several operations have written one id, an operation that did not fail takes
            // precedence.
            let speaker = self.enqueued.entry(message.id).or_insert((operation, message));
            if speaker.0.outcome == Outcome::Failed {
                *speaker = (operation, message);
            }
        }
    }

    /// Returns whether a message is committed, which means that its outbox row exists or was
    /// removed by retention.
    pub(crate) fn is_committed(&self, id: Uuid) -> bool {
        self.outbox.contains_key(&id) || self.removed.contains(&id)
    }

    /// Returns whether a message was committed before the database went back to a state without it.
    pub(crate) fn is_forgotten(&self, id: Uuid) -> bool {
        self.forgotten.contains(&id)
    }

    /// Returns whether a business row was committed before the database went back to a state
    /// without it.
    pub(crate) fn is_row_forgotten(&self, row: &str) -> bool {
        self.forgotten_rows.contains(row)
    }

    /// Returns whether a message may be seen downstream: it is committed, or once was.
    pub(crate) fn was_committed(&self, id: Uuid) -> bool {
        self.is_committed(id) || self.is_forgotten(id)
    }

    /// Returns whether a message is at the broker or parked.
    pub(crate) fn is_accounted_for(&self, id: Uuid) -> bool {
        self.published.contains(&id) || self.parked.contains_key(&id)
    }

    /// Returns whether an operation enqueued the message and rolled back to a savepoint.
    pub(crate) fn is_undone(&self, id: Uuid) -> bool {
        self.undone.contains(&id)
    }

    /// Returns the content that a client sent under this id.
    pub(crate) fn sent(&self, id: Uuid) -> Option<&'a Content> {
        self.enqueued.get(&id).map(|(_, message)| &message.content)
    }

    /// Returns the ordering key of a message, from the most upstream copy that has it.
    pub(crate) fn key(&self, id: Uuid) -> Option<&'a Arc<str>> {
        let stored = || self.outbox.get(&id).and_then(|row| row.content.key.as_ref());
        let key = self.sent(id).and_then(|content| content.key.as_ref()).or_else(stored);
        key.filter(|key| !key.is_empty())
    }

    /// Returns the position of a message in the order of its key, or `None` for a message that does
    /// not have to keep its order.
    pub(crate) fn turn(&self, id: Uuid) -> Option<Turn> {
        let row = self.outbox.get(&id);
        let operation = self.enqueued.get(&id);
        if self.is_forgotten(id) {
            return None;
        }
        if row.is_some_and(|row| row.out_of_turn) || operation.is_some_and(|(_, message)| message.out_of_turn)
        {
            return None;
        }
        let seq = operation.and_then(|(_, message)| message.seq).or_else(|| row.and_then(|row| row.seq));
        // Times order an operation only if no other operation claims the id, and the end counts
        // only if it is a commit.
        let operation = operation.map(|(operation, _)| *operation);
        let operation = operation.filter(|operation| {
            self.messages.get(&id).is_some_and(|claims| claims.is_only(operation.outcome))
        });
        let started = operation.and_then(|operation| operation.started);
        let ended =
            operation.filter(|operation| operation.outcome == Outcome::Ok).and_then(|done| done.ended);
        Some(Turn { seq, started, ended })
    }
}
