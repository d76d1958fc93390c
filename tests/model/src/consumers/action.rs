//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::breakage::Breakage;
use super::state::{Inbox, State, Work};
use super::{Consumers, promise};
use crate::sets::{Entry, Set};

/// One step of one worker, or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A worker receives the delivery at this place of the log.
    Receive(usize, usize),
    /// A worker inserts the inbox row and applies the effect, finds a duplicate, or is refused.
    Admit(usize),
    /// A worker's transaction commits.
    Commit(usize),
    /// A worker's transaction commits, but the worker gets no answer.
    CommitUnheard(usize),
    /// A worker acknowledges.
    Acknowledge(usize),
    /// A worker crashes: what is not committed is rolled back.
    Crash(usize),
    /// The oldest messages expire, and their inbox rows are removed.
    Expire,
}

impl Model for Consumers {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let names = self.workers.iter().max().map_or(0, |last| last + 1);
        let inbox = Inbox {
            rows: Set::default(),
            effects: vec![0; self.entries.into()],
            dead: Set::default(),
            acknowledged: Set::default(),
        };
        let state = |log| State {
            log,
            inboxes: vec![inbox.clone(); names],
            workers: vec![Work::Idle; self.workers.len()],
            horizon: 0,
            faults: 0,
            suppressed: false,
        };
        self.logs().into_iter().map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (worker, work) in state.workers.iter().enumerate() {
            match work {
                Work::Idle => {
                    let acknowledged = state.inboxes[self.workers[worker]].acknowledged;
                    let open = (0..state.log.len()).filter(|place| !acknowledged.has(*place as Entry));
                    actions.extend(open.map(|place| Action::Receive(worker, place)));
                    continue;
                }
                Work::Received(place) => {
                    let is_acknowledged =
                        state.inboxes[self.workers[worker]].acknowledged.has(*place as Entry);
                    if self.breakage == Breakage::AckBeforeCommit && !is_acknowledged {
                        actions.push(Action::Acknowledge(worker));
                    } else if !self.must_wait(state, worker, *place) {
                        actions.push(Action::Admit(worker));
                    }
                }
                Work::Applied(_) | Work::Remembered(_) => {
                    actions.push(Action::Commit(worker));
                    if state.faults < self.faults_max {
                        actions.push(Action::CommitUnheard(worker));
                    }
                }
                Work::Settled(_) => actions.push(Action::Acknowledge(worker)),
            }
            if state.faults < self.faults_max {
                actions.push(Action::Crash(worker));
            }
        }
        if state.horizon < self.entries && !self.is_held(state, state.horizon) {
            actions.push(Action::Expire);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Receive(worker, place) => state.workers[worker] = Work::Received(place),
            Action::Admit(worker) => self.admit(&mut state, worker)?,
            Action::Commit(worker) => self.commit(&mut state, worker)?,
            Action::CommitUnheard(worker) => {
                self.commit(&mut state, worker)?;
                state.workers[worker] = Work::Idle;
                state.faults += 1;
            }
            Action::Acknowledge(worker) => self.acknowledge(&mut state, worker)?,
            Action::Crash(worker) => {
                state.workers[worker] = Work::Idle;
                state.faults += 1;
            }
            Action::Expire => {
                for inbox in &mut state.inboxes {
                    inbox.rows = inbox.rows.without(Set::default().with(state.horizon));
                }
                state.horizon += 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        promise::properties()
    }
}

impl Consumers {
    /// Returns every log that holds at least one message.
    fn logs(&self) -> Vec<Vec<Entry>> {
        let mut logs: Vec<Vec<Entry>> = vec![Vec::new()];
        let mut all = Vec::new();
        for _ in 0..self.log_max {
            let longer = logs
                .iter()
                .flat_map(|log| (0..self.entries).map(move |entry| [log.as_slice(), &[entry]].concat()));
            logs = longer.collect();
            all.extend(logs.iter().cloned());
        }
        all
    }

    /// Returns the index of the inbox that holds a worker's rows.
    fn inbox(&self, worker: usize) -> usize {
        if self.breakage == Breakage::DedupByIdAlone { 0 } else { self.workers[worker] }
    }

    /// Returns whether a worker must wait because another transaction has inserted this row and not
    /// committed it.
    fn must_wait(&self, state: &State, worker: usize, place: usize) -> bool {
        if matches!(self.breakage, Breakage::SelectThenInsert | Breakage::GuardOff) {
            return false;
        }
        state.workers.iter().enumerate().any(|(other, work)| {
            let holds = matches!(work, Work::Applied(held) if state.entry(*held) == state.entry(place));
            other != worker && self.inbox(other) == self.inbox(worker) && holds
        })
    }

    /// Returns whether an open transaction holds a row of this message: its removal waits.
    fn is_held(&self, state: &State, entry: Entry) -> bool {
        let holds = |work: &Work| matches!(work, Work::Applied(place) | Work::Remembered(place) if state.entry(*place) == entry);
        state.workers.iter().any(holds)
    }

    fn admit(&self, state: &mut State, worker: usize) -> Option<()> {
        let Work::Received(place) = state.workers[worker] else { return None };
        let entry = state.entry(place);
        let name = self.workers[worker];
        let is_known = state.inboxes[self.inbox(worker)].rows.has(entry);
        state.workers[worker] = if entry < state.horizon && self.breakage != Breakage::ExpiredAdmitted {
            state.inboxes[name].dead = state.inboxes[name].dead.with(entry);
            Work::Settled(place)
        } else if is_known && self.breakage != Breakage::GuardOff {
            state.suppressed = true;
            Work::Settled(place)
        } else if self.breakage == Breakage::EffectInAnotherTransaction {
            let rows = &mut state.inboxes[name].rows;
            *rows = rows.with(entry);
            Work::Remembered(place)
        } else {
            Work::Applied(place)
        };
        Some(())
    }

    fn commit(&self, state: &mut State, worker: usize) -> Option<()> {
        let (Work::Applied(place) | Work::Remembered(place)) = state.workers[worker] else { return None };
        let entry = state.entry(place);
        let rows = &mut state.inboxes[self.inbox(worker)].rows;
        *rows = rows.with(entry);
        let inbox = &mut state.inboxes[self.workers[worker]];
        // Bounded, so that a broken model stays finite.
        inbox.effects[usize::from(entry)] = (inbox.effects[usize::from(entry)] + 1).min(2);
        state.workers[worker] = Work::Settled(place);
        Some(())
    }

    fn acknowledge(&self, state: &mut State, worker: usize) -> Option<()> {
        let (Work::Settled(place) | Work::Received(place)) = state.workers[worker] else { return None };
        let acknowledged = &mut state.inboxes[self.workers[worker]].acknowledged;
        *acknowledged = acknowledged.with(place as Entry);
        if matches!(state.workers[worker], Work::Settled(_)) {
            state.workers[worker] = Work::Idle;
        }
        Some(())
    }
}
