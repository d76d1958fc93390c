//! The work of a worker while the saga runs.

use super::Sagas;
use super::breakage::Breakage;
use super::state::{Bank, CallRow, RequestRow, Rows, SagaState, State, StepRow, Undo, Worker};

impl Sagas {
    /// Takes the next step of the function: step, call, request, end.
    pub(super) fn forward(&self, state: &mut State, number: usize, view: Rows) {
        match (view.step.0, view.call.0, view.request.0) {
            (StepRow::Absent, ..) => self.step(state, number),
            (_, CallRow::Absent | CallRow::Calling, _) => self.call(state, number, view),
            (_, CallRow::GaveUp, _) | (.., RequestRow::TimedOut) => self.begin_undo(state, number),
            (.., RequestRow::Absent) => self.request(state, number, view),
            (.., RequestRow::Waiting) => self.await_reply(state, number, view),
            (.., RequestRow::Done) if state.stops => self.begin_undo(state, number),
            (.., RequestRow::Done) => self.finish(state, number),
        }
    }

    /// Returns whether the saga is not cancelled. Every change that goes forward checks that.
    fn may_go_on(&self, rows: &Rows) -> bool {
        !rows.is_cancelled || self.breakage == Breakage::CancelNotLookedAt
    }

    /// Commits effect and row in one transaction.
    fn step(&self, state: &mut State, number: usize) {
        if self.breakage == Breakage::EffectApart && state.effects.0 < 2 {
            state.effects.0 += 1;
        }
        let is_done = self.change(state, number, |rows| {
            (rows.step.0 == StepRow::Absent && self.may_go_on(rows))
                .then(|| rows.step = (StepRow::Done, Undo::Pending))
        });
        if is_done && self.breakage != Breakage::EffectApart {
            // Bounded, so that a broken model stays finite.
            state.effects.0 = (state.effects.0 + 1).min(2);
        }
    }

    /// Announces the call, makes it, and stores the answer, in three separate steps.
    fn call(&self, state: &mut State, number: usize, view: Rows) {
        let Worker::Holds { epoch, has_answer, .. } = state.workers[number] else { return };
        let is_announced = view.call.0 == CallRow::Calling || self.breakage == Breakage::UnannouncedCall;
        if has_answer {
            self.change(state, number, |rows| {
                let is_expected = match self.breakage {
                    Breakage::UnannouncedCall => rows.call.0 == CallRow::Absent,
                    _ => rows.call.0 == CallRow::Calling,
                };
                is_expected.then(|| rows.call = (CallRow::Done, Undo::Pending))
            });
        } else if is_announced {
            match state.bank.0 {
                Bank::Nothing => state.bank = (Bank::Charged, 1),
                // Another charge: the bank cannot know that it is the same one.
                Bank::Charged | Bank::Refunded if self.breakage == Breakage::KeysNotHonoured => {
                    state.bank = (Bank::Charged, (state.bank.1 + 1).min(4));
                }
                Bank::Charged => {}
                // Nothing happens under the key any more, and the bank confirms this.
                Bank::Refunded => {
                    state.workers[number] = Worker::Idle;
                    return;
                }
            }
            state.workers[number] = Worker::Holds { epoch, view, has_answer: true };
        } else {
            self.change(state, number, |rows| {
                (rows.call.0 == CallRow::Absent && self.may_go_on(rows))
                    .then(|| rows.call = (CallRow::Calling, Undo::Pending))
            });
        }
    }

    /// Commits message, row and pause in one transaction. A reply that has come already is the
    /// result.
    fn request(&self, state: &mut State, number: usize, view: Rows) {
        let (row, seen) =
            if view.has_reply { (RequestRow::Done, None) } else { (RequestRow::Waiting, Some(view.replies)) };
        let is_out = self.change(state, number, |rows| {
            (rows.request.0 == RequestRow::Absent && self.may_go_on(rows))
                .then(|| rows.request = (row, Undo::Pending))
        });
        if is_out {
            state.shipping.0 = true;
            if let Some(seen) = seen {
                self.wait(state, number, seen);
            }
        }
    }

    /// Releases the saga until a reply arrives or the request times out.
    fn wait(&self, state: &mut State, number: usize, seen: u8) {
        let is_missed = state.rows.replies != seen && self.breakage != Breakage::RepliesNotCounted;
        state.is_due = is_missed || state.rows.is_cancelled || state.rows.is_late;
        Self::let_go(state, number);
    }

    fn await_reply(&self, state: &mut State, number: usize, view: Rows) {
        if view.has_reply {
            self.change(state, number, |rows| {
                (rows.request.0 == RequestRow::Waiting && self.may_go_on(rows))
                    .then(|| rows.request.0 = RequestRow::Done)
            });
        } else if view.is_late {
            let is_counted = self.breakage != Breakage::TimeoutsNotCounted;
            self.change(state, number, |rows| {
                let is_so = rows.request.0 == RequestRow::Waiting
                    && self.may_go_on(rows)
                    && (rows.replies == view.replies || !is_counted);
                is_so.then(|| rows.request.0 = RequestRow::TimedOut)
            });
        } else if self.change(state, number, |_| Some(())) {
            self.wait(state, number, view.replies);
        }
    }

    fn finish(&self, state: &mut State, number: usize) {
        let is_finished = self.change(state, number, |rows| {
            (rows.saga == SagaState::Running && self.may_go_on(rows)).then(|| rows.saga = SagaState::Finished)
        });
        if is_finished {
            Self::let_go(state, number);
        }
    }
}
