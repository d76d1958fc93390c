//! The actions that can happen next, and the states that follow.

use stateright::Model;

use super::breakage::Breakage;
use super::state::{Bank, CallRow, RequestRow, Rows, SagaState, State, StepRow, Undo, Worker};
use super::{Sagas, promise};

/// One step of one worker, of an operator, of the other services, or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A worker claims the saga: it is due, or the lease of the other worker has expired.
    Claim(usize),
    /// A worker takes the next step.
    Next(usize),
    /// The same, but the worker gets no answer.
    NextUnheard(usize),
    /// A worker abandons a call whose outcome it does not know.
    GiveUp(usize),
    /// A worker crashes.
    Crash(usize),
    /// A reply arrives.
    Reply,
    /// The request times out.
    TimeIsUp,
    /// An operator cancels the saga.
    Cancel,
}

impl Model for Sagas {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let rows = Rows {
            saga: SagaState::Running,
            step: (StepRow::Absent, Undo::None),
            call: (CallRow::Absent, Undo::None),
            request: (RequestRow::Absent, Undo::None),
            replies: 0,
            has_reply: false,
            is_cancelled: false,
            is_late: false,
        };
        let state = |stops| State {
            stops,
            rows,
            epoch: 0,
            is_owned: false,
            is_due: true,
            effects: (0, 0),
            bank: (Bank::Nothing, 0),
            shipping: (false, false),
            workers: [Worker::Idle; 2],
            faults: 0,
            replies: 0,
            is_fenced: false,
            has_late_reply: false,
            has_second_reply: false,
        };
        [false, true].map(state).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_open = matches!(state.rows.saga, SagaState::Running | SagaState::Undoing);
        for (number, worker) in state.workers.iter().enumerate() {
            let Worker::Holds { view, has_answer, .. } = worker else {
                if is_open && (state.is_owned || state.is_due) && state.epoch < self.claims_max {
                    actions.push(Action::Claim(number));
                }
                continue;
            };
            actions.push(Action::Next(number));
            let is_calling = view.saga == SagaState::Running && view.call.0 == CallRow::Calling;
            if is_calling && !has_answer {
                actions.push(Action::GiveUp(number));
            }
            if state.faults < self.faults_max {
                actions.extend([Action::NextUnheard(number), Action::Crash(number)]);
            }
        }
        if state.replies < self.replies_max {
            actions.push(Action::Reply);
        }
        if state.rows.request.0 == RequestRow::Waiting && !state.rows.is_late {
            actions.push(Action::TimeIsUp);
        }
        if state.rows.saga == SagaState::Running && !state.rows.is_cancelled {
            actions.push(Action::Cancel);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Claim(number) => {
                state.epoch += 1;
                (state.is_owned, state.is_due) = (true, false);
                state.workers[number] =
                    Worker::Holds { epoch: state.epoch, view: state.rows, has_answer: false };
            }
            Action::Next(number) => self.next(&mut state, number)?,
            // The step was taken, and the worker is in the same state as after a crash.
            Action::NextUnheard(number) => {
                self.next(&mut state, number)?;
                state.workers[number] = Worker::Idle;
                state.faults += 1;
            }
            Action::GiveUp(number) => {
                let is_stored = self.change(&mut state, number, |rows| {
                    (rows.call.0 == CallRow::Calling).then(|| rows.call.0 = CallRow::GaveUp)
                });
                if is_stored {
                    self.begin_undo(&mut state, number);
                }
            }
            Action::Crash(number) => {
                state.workers[number] = Worker::Idle;
                state.faults += 1;
            }
            Action::Reply => Self::reply(&mut state),
            Action::TimeIsUp => {
                state.rows.is_late = true;
                state.is_due |= !state.is_owned;
            }
            Action::Cancel => {
                if state.is_owned {
                    state.rows.is_cancelled = true;
                } else {
                    state.rows.saga = SagaState::Undoing;
                    state.is_due = true;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        promise::properties()
    }
}

impl Sagas {
    /// Takes the next step of a worker, based on its knowledge.
    fn next(&self, state: &mut State, number: usize) -> Option<()> {
        let Worker::Holds { view, .. } = state.workers[number] else { return None };
        match view.saga {
            SagaState::Running if view.is_cancelled && self.breakage != Breakage::CancelNotLookedAt => {
                self.begin_undo(state, number);
            }
            SagaState::Running => self.forward(state, number, view),
            SagaState::Undoing => self.undo(state, number, view),
            SagaState::Finished | SagaState::Undone => state.workers[number] = Worker::Idle,
        }
        Some(())
    }

    /// Changes the rows in one transaction, if the worker still owns the saga and the rows are as
    /// it expects. Otherwise the worker reads them again, or releases a saga that it does not own.
    /// Returns whether the change was made.
    pub(super) fn change(
        &self,
        state: &mut State,
        number: usize,
        change: impl Fn(&mut Rows) -> Option<()>,
    ) -> bool {
        let Worker::Holds { epoch, has_answer, .. } = state.workers[number] else { return false };
        let is_mine = epoch == state.epoch && state.is_owned;
        let mut rows = state.rows;
        if (is_mine || self.breakage == Breakage::NoEpoch) && change(&mut rows).is_some() {
            state.rows = rows;
            state.workers[number] = Worker::Holds { epoch, view: rows, has_answer: false };
            return true;
        }
        state.is_fenced |= !is_mine;
        state.workers[number] =
            if is_mine { Worker::Holds { epoch, view: state.rows, has_answer } } else { Worker::Idle };
        false
    }

    /// Releases the saga.
    pub(super) fn let_go(state: &mut State, number: usize) {
        state.is_owned = false;
        state.workers[number] = Worker::Idle;
    }

    /// Begins to undo the saga; its worker keeps it.
    pub(super) fn begin_undo(&self, state: &mut State, number: usize) {
        self.change(state, number, |rows| {
            (rows.saga == SagaState::Running).then(|| {
                rows.saga = SagaState::Undoing;
                rows.is_cancelled = false;
            })
        });
    }

    /// Delivers a reply, perhaps a second one, and perhaps before the request.
    fn reply(state: &mut State) {
        state.replies += 1;
        let rows = &mut state.rows;
        let is_awaited = matches!(rows.request.0, RequestRow::Absent | RequestRow::Waiting);
        if rows.saga != SagaState::Running || !is_awaited {
            state.has_late_reply = true;
            return;
        }
        rows.replies += 1;
        state.has_second_reply |= rows.has_reply;
        rows.has_reply = true;
        state.is_due |= !state.is_owned;
    }
}
