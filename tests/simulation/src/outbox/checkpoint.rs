//! Stores a checkpoint, and checks its claim at every moment, not only at the end: everything that
//! the cursor has passed is at the broker or parked.

use std::time::Duration;

use checker::Promise;
use outbox_log::{Cursor, EntryId, ExceptionChange, ExceptionState, Fenced, LogError, Parked};
use tokio::time::Instant;

use super::history::commits_at;
use super::tables::{OutboxTables, ParkedEntry};
use crate::breakage::Breakage;
use crate::process::ProcessId;
use crate::world::State;

impl State {
    pub(super) fn checkpoint(
        &mut self,
        process: ProcessId,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        self.check_mark(&cursor.base)?;
        let fenced = self.fence(process, epoch, "checkpoint");
        if fenced == Fenced::Lost {
            return Ok(fenced);
        }
        if commits_at(&cursor.base) < commits_at(&self.outbox.relay.cursor.base) {
            self.found(Promise::CursorIsTrue, format!("{process} moves the cursor back to {cursor:?}"));
        }
        let is_apart = self.is_broken(Breakage::ChangesWithoutCursor) && !changes.is_empty();
        if !is_apart {
            self.outbox.relay.cursor = cursor.clone();
        }
        for change in changes {
            match change {
                ExceptionChange::Park(parked) => self.park(parked),
                ExceptionChange::Resolve(id) => self.resolve(*id),
            }
        }
        self.note(format_args!("  stored {cursor:?}"));
        let held = (self.millis(), self.outbox.held_len());
        self.held.push(held);
        self.look_behind();
        Ok(fenced)
    }

    fn park(&mut self, parked: &Parked) {
        let Parked { id, state, .. } = parked;
        let is_discarded = |aside: &ParkedEntry| aside.parked.state == ExceptionState::Discarded;
        if self.outbox.exceptions.get(id).is_some_and(is_discarded) {
            return;
        }
        let number = self.outbox.rows.get(&id.0).map_or(0, |row| self.name(row.message.id));
        self.note(format_args!("  m{number} is {state}"));
        let is_timed =
            matches!(state, ExceptionState::Scheduled | ExceptionState::Retrying | ExceptionState::Discarded);
        let due_in = parked.due_in.or_else(|| is_timed.then_some(Duration::ZERO));
        let row = self.outbox.rows.get(&id.0);
        let deliver_at = row.and_then(|row| row.deliver_at).filter(|_| *state == ExceptionState::Scheduled);
        let due_at = deliver_at.or_else(|| due_in.map(|due_in| Instant::now() + due_in));
        let copy = match self.outbox.exceptions.remove(id) {
            Some(aside) => aside.copy,
            None => row.filter(|row| !row.is_removed).map(|row| row.message.clone()),
        };
        let aside = ParkedEntry { parked: parked.clone(), due_at, copy };
        self.outbox.exceptions.insert(*id, aside);
        let cursor = &self.outbox.relay.cursor;
        let row = self.outbox.rows.get(&id.0);
        if row.is_none_or(|row| !OutboxTables::is_passed(cursor, id.0, row)) {
            self.found(Promise::CursorIsTrue, format!("m{number} is {state} ahead of the cursor"));
        }
    }

    fn resolve(&mut self, id: EntryId) {
        let Some(aside) = self.outbox.exceptions.remove(&id) else { return };
        let Some(message) = self.outbox.rows.get(&id.0).map(|row| row.message.id) else { return };
        let number = self.name(message);
        self.note(format_args!("  m{number} is resolved"));
        if !self.broker.has(message) && aside.parked.state != ExceptionState::Discarded {
            self.found(Promise::NoLoss, format!("m{number} was resolved and is not at the broker"));
        }
    }

    /// Checks every row that the cursor has passed for the first time.
    fn look_behind(&mut self) {
        let cursor = &self.outbox.relay.cursor;
        let is_new = |(id, row): &(&i64, &super::tables::Row)| {
            !self.outbox.passed.contains(id) && OutboxTables::is_passed(cursor, **id, row)
        };
        let new: Vec<_> =
            self.outbox.rows.iter().filter(is_new).map(|(id, row)| (*id, row.message.id)).collect();
        for (id, message) in new {
            self.outbox.passed.insert(id);
            if !self.broker.has(message) && !self.outbox.exceptions.contains_key(&EntryId(id)) {
                let text = format!(
                    "the cursor has passed m{}, which is neither at the broker nor parked",
                    self.name(message)
                );
                self.found(Promise::CursorIsTrue, text);
            }
        }
    }

    /// Runs retention: removes what is settled for good.
    pub(crate) fn remove_settled(&mut self) {
        let by_reader = self.is_broken(Breakage::RetentionByReader);
        let OutboxTables { rows, relay, read_to, .. } = &mut self.outbox;
        let mut removed = 0;
        for (id, row) in rows.iter_mut() {
            let is_over = if by_reader {
                row.commit.is_some() && *id <= *read_to
            } else {
                OutboxTables::is_passed(&relay.cursor, *id, row)
            };
            if is_over && !row.is_removed {
                row.is_removed = true;
                removed += 1;
            }
        }
        self.note(format_args!("retention removes {removed} rows"));
    }
}
