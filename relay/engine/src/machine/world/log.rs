//! A model of the database: the log, the cursor and the exceptions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use message::Message;
use outbox_log::{
    Cursor, DueKind, DuePage, DuePosition, Entry, EntryId, Exception, ExceptionChange, ExceptionState,
    ExceptionSummary, HeldAsk, HeldPage, HeldQueue, HeldQueues, Parked, QueueName,
};

use crate::blocks::Blocks;
use crate::machine::Checkpoint;
use crate::settings::DeadPolicy;

pub(in crate::machine) struct Row {
    pub(super) parked: Parked,
    pub(super) due_at: Option<u64>,
}

/// The database: the log, the cursor and the exceptions.
pub(in crate::machine) struct Log {
    pub(in crate::machine) entries: Vec<Message>,
    pub(in crate::machine) delays: HashMap<i64, u64>,
    pub(in crate::machine) cursor: Cursor,
    pub(in crate::machine) rows: BTreeMap<EntryId, Row>,
}

impl Log {
    pub(super) fn entry(&self, id: EntryId, deliver_in: Option<Duration>) -> Entry {
        let index = usize::try_from(id.0 - 1).unwrap();
        Entry { id, message: Ok(self.entries[index].clone()), deliver_in }
    }

    /// Shortens an entry, as an operator does when it is dead because of its size.
    pub(super) fn edit(&mut self, id: EntryId) {
        let index = usize::try_from(id.0 - 1).unwrap();
        self.entries[index].payload.truncate(10);
    }

    pub(in crate::machine) fn store(&mut self, checkpoint: Checkpoint, now: u64) {
        self.cursor = checkpoint.cursor;
        for change in checkpoint.changes {
            match change {
                ExceptionChange::Resolve(id) => _ = self.rows.remove(&id),
                ExceptionChange::Park(parked) => {
                    let due_at = parked.due_in.map(|due_in| now + due_in.as_millis() as u64);
                    let is_discarded = |row: &Row| row.parked.state == ExceptionState::Discarded;
                    if !self.rows.get(&parked.id).is_some_and(is_discarded) {
                        self.rows.insert(parked.id, Row { parked, due_at });
                    }
                }
            }
        }
    }

    fn read(&self, id: EntryId, row: &Row) -> Exception {
        let entry = self.entry(id, None);
        Exception { entry, state: row.parked.state, attempts: row.parked.attempts }
    }

    fn is_of(row: &Row, kind: DueKind) -> bool {
        match row.parked.state {
            ExceptionState::Scheduled | ExceptionState::Discarded => kind == DueKind::Scheduled,
            ExceptionState::Retrying => kind == DueKind::Retrying,
            ExceptionState::Held | ExceptionState::Dead => false,
        }
    }

    /// Discards an entry, as an operator does between two retries. Returns whether it was possible.
    pub(in crate::machine) fn discard(&mut self, id: EntryId, now: u64) -> bool {
        let is_waiting = |row: &&mut Row| {
            row.parked.state == ExceptionState::Retrying && row.due_at.is_some_and(|due_at| due_at > now)
        };
        let Some(row) = self.rows.get_mut(&id).filter(is_waiting) else { return false };
        row.parked.state = ExceptionState::Discarded;
        row.due_at = Some(now);
        true
    }

    /// Returns a page of due exceptions. Their positions are in milliseconds here.
    pub(in crate::machine) fn due(
        &self,
        kind: DueKind,
        now: u64,
        after: Option<DuePosition>,
        len: usize,
    ) -> DuePage {
        let place = |(id, row): (&EntryId, &Row)| {
            let at_micros = i64::try_from(row.due_at.filter(|at| *at <= now)?).unwrap();
            Some(DuePosition { at_micros, id: *id }).filter(|place| after.is_none_or(|after| *place > after))
        };
        let timed = self.rows.iter().filter(|(_, row)| Self::is_of(row, kind));
        let mut places: Vec<_> = timed.filter_map(place).collect();
        places.sort_unstable();
        let exhausted = places.len() <= len;
        places.truncate(len);
        DuePage {
            exceptions: places.iter().map(|place| self.read(place.id, &self.rows[&place.id])).collect(),
            position: places.last().copied().or(after),
            exhausted,
            next_in: None,
        }
    }

    pub(super) fn held(&self) -> impl Iterator<Item = (QueueName, EntryId, &Row)> {
        let held = self.rows.iter().filter(|(_, row)| row.parked.state == ExceptionState::Held);
        held.map(|(id, row)| (QueueName::of(&row.parked.topic, row.parked.key.as_deref()), *id, row))
    }

    pub(in crate::machine) fn held_page(&self, ask: &HeldAsk, len: usize) -> HeldPage {
        let mut found = self.held().filter(|(queue, id, _)| *queue == ask.queue && *id >= ask.from);
        let exceptions = found.by_ref().take(len).map(|(_, id, row)| self.read(id, row)).collect();
        HeldPage { exceptions, exhausted: found.next().is_none() }
    }

    pub(in crate::machine) fn queues(&self, after: Option<&QueueName>, len: usize) -> HeldQueues {
        let mut all: BTreeMap<QueueName, (EntryId, &Row)> = BTreeMap::new();
        for (queue, id, row) in self.held().filter(|(queue, ..)| after.is_none_or(|after| queue > after)) {
            all.entry(queue).or_insert((id, row));
        }
        let exhausted = all.len() <= len;
        let queue = |(name, (first, row)): (QueueName, (EntryId, &Row))| HeldQueue {
            name,
            first,
            topic: row.parked.topic.clone(),
        };
        HeldQueues { queues: all.into_iter().take(len).map(queue).collect(), exhausted }
    }

    pub(super) fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for (id, row) in &self.rows {
            let (key, state) = (row.parked.key.clone(), row.parked.state);
            blocks.load(&ExceptionSummary { id: *id, key, state }, DeadPolicy::Hold);
        }
        self.queues(None, usize::MAX).queues.iter().for_each(|queue| blocks.load_queue(queue));
        blocks
    }
}
