//! The work of a worker while the saga is undone.

use super::Sagas;
use super::breakage::Breakage;
use super::state::{Bank, CallRow, Rows, SagaState, State, Undo, Worker};

/// A step that is to be undone.
#[derive(Clone, Copy)]
enum Target {
    Step,
    Call,
    Request,
}

impl Sagas {
    /// Undoes the last step that needs it, or ends the saga.
    pub(super) fn undo(&self, state: &mut State, number: usize, view: Rows) {
        let is_known = view.call.0 == CallRow::Done || self.breakage != Breakage::UnknownCallStays;
        let mut targets = vec![
            (Target::Request, view.request.1 == Undo::Pending),
            (Target::Call, view.call.1 == Undo::Pending && is_known),
            (Target::Step, view.step.1 == Undo::Pending),
        ];
        if self.breakage == Breakage::UndoneInOrder {
            targets.reverse();
        }
        match targets.into_iter().find(|(_, is_pending)| *is_pending) {
            Some((Target::Step, _)) => self.undo_step(state, number),
            Some((Target::Call, _)) => self.undo_call(state, number),
            Some((Target::Request, _)) => {
                let is_undone = self.change(state, number, |rows| {
                    (rows.request.1 == Undo::Pending).then(|| rows.request.1 = Undo::Done)
                });
                state.shipping.1 |= is_undone;
            }
            None => {
                let has_ended = self.change(state, number, |rows| {
                    (rows.saga == SagaState::Undoing).then(|| rows.saga = SagaState::Undone)
                });
                if has_ended {
                    Self::let_go(state, number);
                }
            }
        }
    }

    /// Commits undo and row in one transaction.
    fn undo_step(&self, state: &mut State, number: usize) {
        let is_apart = self.breakage == Breakage::UndoApart;
        if is_apart {
            state.effects.1 = (state.effects.1 + 1).min(2);
        }
        let is_undone = self
            .change(state, number, |rows| (rows.step.1 == Undo::Pending).then(|| rows.step.1 = Undo::Done));
        if is_undone && !is_apart {
            state.effects.1 = (state.effects.1 + 1).min(2);
        }
    }

    /// Refunds, even if the call is not known to have happened, and stores that, in two separate
    /// steps.
    fn undo_call(&self, state: &mut State, number: usize) {
        let Worker::Holds { epoch, view, has_answer } = state.workers[number] else { return };
        if has_answer {
            self.change(state, number, |rows| {
                (rows.call.1 == Undo::Pending).then(|| rows.call.1 = Undo::Done)
            });
            return;
        }
        let moved = state.bank.1 + u8::from(state.bank.0 == Bank::Charged);
        state.bank = (Bank::Refunded, moved.min(4));
        state.workers[number] = Worker::Holds { epoch, view, has_answer: true };
    }
}
