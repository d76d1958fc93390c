//! Transactions of producers, retention, the server and its replica.

use super::action::Action;
use super::state::{Database, State, Writer};
use super::{Breakage, Pending};
use crate::sets::{Entry, Set};

impl Pending {
    pub(super) fn server_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, writer) in state.writers.iter().enumerate() {
            match *writer {
                Writer::Open(drawn) if drawn < self.transactions[number] => {
                    actions.push(Action::Draw(number));
                }
                Writer::Open(_) => actions.push(Action::Commit(number)),
                Writer::Unnoted => actions.push(Action::Note(number)),
                Writer::Ended => {}
            }
            if matches!(*writer, Writer::Open(1..) | Writer::Unnoted) {
                actions.push(Action::Rollback(number));
            }
        }
        if state.faults == self.faults_max {
            return;
        }
        if state.writers.iter().all(|writer| !matches!(*writer, Writer::Open(1..))) {
            actions.push(Action::SetCounterBack);
        }
        if !self.has_gaps {
            actions.push(if state.replica.is_none() { Action::Lag } else { Action::FailOver });
        }
    }

    /// Draws the id of the next message.
    pub(super) fn draw(&self, state: &mut State, number: usize) {
        let Writer::Open(drawn) = &mut state.writers[number] else { return };
        let message = self.messages(number).start + *drawn;
        *drawn += 1;
        state.database.counter += 1;
        let id = state.database.counter;
        state.has_reused |= id <= state.highest_drawn;
        state.highest_drawn = state.highest_drawn.max(id);
        state.drawn[usize::from(message)] = id;
        let is_of_key = |other: &Entry| self.key(*other) == self.key(message);
        let before = state.database.committed.without(state.effects).iter().filter(is_of_key);
        state.before[usize::from(message)] = before.fold(Set::default(), Set::with);
    }

    pub(super) fn commit(&self, state: &mut State, number: usize) {
        let messages = self.of(number);
        for message in messages.iter().map(usize::from) {
            state.database.ids[message] = state.drawn[message];
        }
        self.end(state, number);
        state.database.committed = state.database.committed.and(messages);
        match self.breakage {
            Breakage::NotedLater => state.writers[number] = Writer::Unnoted,
            Breakage::NotNoted if number + 1 == self.transactions.len() => {}
            _ => state.database.pending = state.database.pending.and(messages),
        }
    }

    /// A transaction ends; nothing is left of it but what it has committed.
    pub(super) fn end(&self, state: &mut State, number: usize) {
        state.writers[number] = Writer::Ended;
        for message in self.messages(number).map(usize::from) {
            state.drawn[message] = 0;
        }
    }

    pub(super) fn note(&self, state: &mut State, number: usize) {
        state.database.pending = state.database.pending.and(self.of(number));
        state.writers[number] = Writer::Ended;
    }

    /// Returns the committed messages whose pending rows their producers are about to write.
    pub(super) fn unnoted(&self, state: &State) -> Set {
        let writers = state.writers.iter().enumerate();
        let unnoted = writers.filter(|(_, writer)| **writer == Writer::Unnoted);
        unnoted.fold(Set::default(), |set, (number, _)| set.and(self.of(number)))
    }

    /// Deletes what retention may delete, and sets the counter back to what is left.
    fn purge(&self, database: &mut Database) {
        let is_kept =
            |message: Entry| database.pending.has(message) && self.breakage != Breakage::PendingNotKept;
        let kept = (0..self.keys.len() as Entry).filter(|message| is_kept(*message));
        let kept = kept.fold(Set::default(), Set::with);
        for (message, id) in (0..).zip(&mut database.ids) {
            *id = if kept.has(message) { *id } else { 0 };
        }
        let gone = database.pending.without(kept);
        database.pending = database.pending.without(gone);
        database.counter = database.highest();
    }

    pub(super) fn set_counter_back(&self, state: &mut State) {
        self.purge(&mut state.database);
    }

    /// The replica becomes the server, with what it has copied so far. Every session breaks.
    pub(super) fn fail_over(&self, state: &mut State) -> Option<()> {
        state.run += 1;
        state.database = state.replica.take()?;
        self.purge(&mut state.database);
        for number in 0..state.writers.len() {
            if !matches!(state.writers[number], Writer::Open(0)) {
                self.end(state, number);
            }
        }
        let back = state.database.pending.iter().any(|message| state.effects.has(message));
        state.has_come_back |= back;
        Some(())
    }
}
