//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::state::{Broker, Closed, Database, Leader, Mark, Process, State};
use super::{Breakage, Transactions, promise};
use crate::sets::{Entry, Set};

/// One step of one participant. Processes are numbered 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process is granted the lease; the previous holder may not notice.
    Acquire(usize),
    /// A process fences the previous session of one of its producers. It fences them one by one.
    ShutOut(usize),
    /// A process reads the last mark, and compares it with the database.
    TakeOver(usize),
    /// A process sends an entry in its transaction, and the broker confirms it.
    Send(usize, Entry),
    /// A process parks an entry.
    Park(usize, Entry),
    /// A process closes its transaction and makes its mark; the next transaction may begin.
    Close(usize),
    /// A process commits the closed transaction with its mark, and gets the answer.
    Commit(usize),
    /// The same, but it gets no answer.
    CommitUnheard(usize),
    /// It gets no answer, and nothing was committed.
    CommitLost(usize),
    /// A process stores its checkpoint. With a stale epoch it learns that it has lost the lease.
    Store(usize),
    /// A process crashes.
    Crash(usize),
    /// Every process ends, and the database goes back to this backup.
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
            Action::ShutOut(number) => self.shut_out(&mut state, number)?,
            Action::TakeOver(number) => self.take_over(&mut state, number)?,
            Action::Close(number) => {
                let leader = state.processes[number].leader()?;
                leader.closed = Some(Closed { producer: leader.turn, mark: leader.checkpoint(self) });
                (leader.turn, leader.is_dirty) = (1 - leader.turn, false);
            }
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
        if !leader.has_taken_over {
            let is_next = leader.next_to_shut_out().is_some();
            actions.push(if is_next { Action::ShutOut(number) } else { Action::TakeOver(number) });
            return;
        }
        let may_send = self.entries().filter(|entry| {
            let is_refused = self.refused == Some(*entry) && !leader.parked.has(*entry);
            leader.may_send(self, *entry) && !is_refused
        });
        actions.extend(may_send.map(|entry| Action::Send(number, entry)));
        let may_park = self.entries().filter(|entry| leader.may_park(self, *entry));
        actions.extend(may_park.map(|entry| Action::Park(number, entry)));
        if leader.may_close() {
            actions.push(Action::Close(number));
        }
        if leader.closed.is_some() {
            actions.push(Action::Commit(number));
            if state.faults < self.faults_max {
                actions.extend([Action::CommitUnheard(number), Action::CommitLost(number)]);
            }
        }
        if !leader.is_stored {
            actions.push(Action::Store(number));
        }
    }

    fn shut_out(&self, state: &mut State, number: usize) -> Option<()> {
        let leader = state.processes[number].leader()?;
        let producer = leader.next_to_shut_out()?;
        let is_left_out = match self.breakage {
            Breakage::NobodyShutOut => true,
            Breakage::OneShutOut => producer == 1,
            _ => false,
        };
        if !is_left_out || state.broker.sessions[producer] == 0 {
            state.broker.sessions[producer] += 1;
            state.broker.open[producer].clear();
        }
        leader.sessions[producer] = Some(state.broker.sessions[producer]);
        Some(())
    }

    fn take_over(&self, state: &mut State, number: usize) -> Option<()> {
        let (mark, stored) = (state.broker.mark, state.database.checkpoint);
        let epoch = state.database.epoch;
        let leader = state.processes[number].leader()?;
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
                // The database gets the mark under the epoch of the lease, and the lease is
                // acquired again.
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
        let producer = state.processes[number].leader()?.turn;
        let is_current = self.is_current(state, number, producer)?;
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
        state.broker.open[producer].push(entry);
        Some(())
    }

    /// Returns whether the coordinator lets a process write.
    fn is_current(&self, state: &State, number: usize, producer: usize) -> Option<bool> {
        let Process::Leading(leader) = &state.processes[number] else { return None };
        Some(leader.sessions[producer] == Some(state.broker.sessions[producer]))
    }

    fn commit(&self, state: &mut State, action: Action) -> Option<()> {
        let (Action::Commit(number) | Action::CommitUnheard(number) | Action::CommitLost(number)) = action
        else {
            return None;
        };
        let Closed { producer, mark } = state.processes[number].leader()?.closed?;
        if !self.is_current(state, number, producer)? {
            state.has_fenced = true;
            state.processes[number] = Process::Standby;
            return Some(());
        }
        let is_apart = self.breakage == Breakage::MarkAfterCommit;
        let is_early = self.breakage == Breakage::StoredBeforeCommit;
        let leader = state.processes[number].leader()?;
        let mark = if self.breakage == Breakage::MarkMadeLate { leader.checkpoint(self) } else { mark };
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
            let seen = std::mem::take(&mut state.broker.open[producer]);
            state.broker.log.extend(seen);
            // With the breakage, a process that gets no answer writes no mark.
            if !is_apart || is_heard {
                state.broker.mark = Some(written);
            }
        }
        if is_heard {
            (leader.committed, leader.is_stored, leader.closed) = (mark, false, None);
            return Some(());
        }
        state.faults += 1;
        state.has_unheard |= is_committed;
        if self.breakage == Breakage::GoesOnAfterUnknown {
            // The process assumes that nothing was committed.
            let before = leader.committed;
            leader.begin(before);
            leader.is_dirty = false;
        } else {
            state.broker.open[producer].clear();
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
