//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::state::{Broker, Database, Leader, Mark, Open, Process, State};
use super::{Breakage, Transactions, promise};
use crate::sets::{Entry, Set};

/// One step of one participant. Processes are numbered 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process is granted the lease; the one before need not notice.
    Acquire(usize),
    /// A process shuts out the session before, reads the last mark, and compares it with the
    /// database.
    TakeOver(usize),
    /// A process sends an entry into its transaction, and the broker confirms it.
    Send(usize, Entry),
    /// A process parks an entry.
    Park(usize, Entry),
    /// A process commits its transaction and its mark, and hears that it is done.
    Commit(usize),
    /// The same, and it hears no answer.
    CommitUnheard(usize),
    /// It hears no answer, and nothing was committed.
    CommitLost(usize),
    /// A process stores its checkpoint; with an epoch that is over it learns that it has lost the
    /// lease.
    Store(usize),
    /// A process crashes.
    Crash(usize),
    /// Every process ends, and the database is set back to this backup.
    Restore(usize),
}

impl Model for Transactions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            database: Database { is_free: true, ..Database::default() },
            backups: vec![Mark::default()],
            broker: Broker::default(),
            processes: [Process::Standby, Process::Standby],
            faults: 0,
            restores: 0,
            has_fenced: false,
            has_brought: false,
            has_unheard: false,
            has_passed: false,
            has_requeued: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, process) in state.processes.iter().enumerate() {
            match process {
                Process::Standby if state.database.epoch < self.epochs_max => {
                    actions.push(Action::Acquire(number));
                }
                Process::Standby | Process::Stopped => {}
                Process::Leading(leader) => self.leader_actions(number, leader, state, actions),
            }
        }
        if state.restores < self.restores_max {
            actions.extend((0..state.backups.len()).map(Action::Restore));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Acquire(number) => {
                state.database.epoch += 1;
                state.processes[number] = Process::Leading(Leader::granted(state.database.epoch));
            }
            Action::Crash(number) => {
                state.faults += 1;
                state.processes[number] = Process::Standby;
            }
            Action::Restore(backup) => {
                state.restores += 1;
                state.processes = [Process::Standby, Process::Standby];
                state.database.checkpoint = state.backups[backup];
            }
            Action::TakeOver(number) => self.take_over(&mut state, number)?,
            Action::Send(number, entry) => self.send(&mut state, number, entry)?,
            Action::Park(number, entry) => {
                let leader = state.processes[number].leader()?;
                leader.parked = leader.parked.with(entry);
            }
            Action::Commit(_) | Action::CommitUnheard(_) | Action::CommitLost(_) => {
                self.commit(&mut state, action)?;
            }
            Action::Store(number) => self.store(&mut state, number)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        promise::properties()
    }
}

impl Transactions {
    fn leader_actions(&self, number: usize, leader: &Leader, state: &State, actions: &mut Vec<Action>) {
        if state.faults < self.faults_max {
            actions.push(Action::Crash(number));
        }
        if leader.session.is_none() {
            actions.push(Action::TakeOver(number));
            return;
        }
        let may_send = self.entries().filter(|entry| {
            let is_refused = self.refused == Some(*entry) && !leader.parked.has(*entry);
            leader.may_send(self, *entry) && !is_refused
        });
        actions.extend(may_send.map(|entry| Action::Send(number, entry)));
        let may_park = self.entries().filter(|entry| leader.may_park(self, *entry));
        actions.extend(may_park.map(|entry| Action::Park(number, entry)));
        if leader.may_commit() {
            actions.push(Action::Commit(number));
            if state.faults < self.faults_max {
                actions.extend([Action::CommitUnheard(number), Action::CommitLost(number)]);
            }
        }
        if !leader.is_stored {
            actions.push(Action::Store(number));
        }
    }

    fn take_over(&self, state: &mut State, number: usize) -> Option<()> {
        let (mark, stored) = (state.broker.mark, state.database.checkpoint);
        if self.breakage != Breakage::NobodyShutOut || state.broker.session == 0 {
            state.broker.session += 1;
            state.broker.open = None;
        }
        let (session, epoch) = (state.broker.session, state.database.epoch);
        let leader = state.processes[number].leader()?;
        leader.session = Some(session);
        let last = mark.map_or(0, |mark| mark.number);
        let behind = last.checked_sub(stored.number);
        match (behind, mark) {
            (Some(0), Some(mark)) => {
                leader.begin(Mark { settled: mark.settled, ..stored });
                state.has_passed |= mark.settled != Set::default();
            }
            (Some(0), None) => leader.begin(stored),
            (Some(1), Some(_)) if self.breakage == Breakage::MarkForgotten => {
                leader.begin(Mark { number: last, ..stored });
            }
            (Some(1), Some(mark)) => {
                // The database is brought to it under the epoch, and the lease is taken anew.
                if leader.epoch == epoch {
                    state.database.checkpoint = Mark { settled: Set::default(), ..mark };
                    state.backups.push(state.database.checkpoint);
                    state.has_brought = true;
                }
                state.processes[number] = Process::Standby;
            }
            _ if self.breakage == Breakage::NumbersNotCompared => {
                leader.begin(Mark { number: last, ..stored });
            }
            _ => state.processes[number] = Process::Stopped,
        }
        Some(())
    }

    fn send(&self, state: &mut State, number: usize, entry: Entry) -> Option<()> {
        let is_current = self.is_current(state, number)?;
        let leader = state.processes[number].leader()?;
        if !is_current {
            state.has_fenced = true;
            state.processes[number] = Process::Standby;
            return Some(());
        }
        leader.left = leader.left.with(entry);
        leader.is_dirty = true;
        state.has_requeued |= leader.parked.has(entry);
        leader.parked = leader.parked.without(Set::default().with(entry));
        let session = leader.session?;
        let open = state.broker.open.get_or_insert(Open { session, entries: Vec::new() });
        open.entries.push(entry);
        Some(())
    }

    /// Whether the coordinator lets a process write.
    fn is_current(&self, state: &State, number: usize) -> Option<bool> {
        let Process::Leading(leader) = &state.processes[number] else { return None };
        Some(leader.session == Some(state.broker.session))
    }

    fn commit(&self, state: &mut State, action: Action) -> Option<()> {
        let (Action::Commit(number) | Action::CommitUnheard(number) | Action::CommitLost(number)) = action
        else {
            return None;
        };
        if !self.is_current(state, number)? {
            state.has_fenced = true;
            state.processes[number] = Process::Standby;
            return Some(());
        }
        let is_apart = self.breakage == Breakage::MarkAfterCommit;
        let is_early = self.breakage == Breakage::StoredBeforeCommit;
        let leader = state.processes[number].leader()?;
        let mark = leader.checkpoint(self);
        let written = match self.breakage {
            Breakage::ParkedApart => Mark { parked: leader.committed.parked, ..mark },
            _ => mark,
        };
        if is_early && leader.epoch == state.database.epoch {
            state.database.checkpoint = Mark { settled: Set::default(), ..mark };
        }
        let is_committed = !matches!(action, Action::CommitLost(_));
        let is_heard = matches!(action, Action::Commit(_));
        if is_committed {
            let open = state.broker.open.take();
            state.broker.log.extend(open.into_iter().flat_map(|open| open.entries));
            // With the breakage, a process that does not hear the answer writes no mark.
            if !is_apart || is_heard {
                state.broker.mark = Some(written);
            }
        }
        if is_heard {
            (leader.committed, leader.is_stored, leader.is_dirty) = (mark, false, false);
            return Some(());
        }
        state.faults += 1;
        state.has_unheard |= is_committed;
        if self.breakage == Breakage::GoesOnAfterUnknown {
            // It believes that nothing has left.
            let before = leader.committed;
            leader.begin(before);
            leader.is_dirty = false;
        } else {
            state.broker.open = None;
            state.processes[number] = Process::Standby;
        }
        Some(())
    }

    fn store(&self, state: &mut State, number: usize) -> Option<()> {
        let epoch = state.database.epoch;
        let leader = state.processes[number].leader()?;
        if leader.epoch != epoch && self.breakage != Breakage::NoEpoch {
            state.processes[number] = Process::Standby;
            return Some(());
        }
        leader.is_stored = true;
        state.database.checkpoint = Mark { settled: Set::default(), ..leader.committed };
        if !state.backups.contains(&state.database.checkpoint) {
            state.backups.push(state.database.checkpoint);
        }
        Some(())
    }
}
