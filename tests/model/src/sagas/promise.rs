//! Properties that must hold in every state, and states that must be reachable for the model to
//! mean anything.

use stateright::Property;

use super::Sagas;
use super::state::{Bank, CallRow, RequestRow, SagaState, State, Undo, Worker};

pub(super) fn properties() -> Vec<Property<Sagas>> {
    vec![
        Property::always("E1 each step happens at most once", |_, state: &State| {
            // One charge and its refund.
            state.effects.0 <= 1 && state.bank.1 <= 2
        }),
        Property::always("E2 an undo happens at most once, after its step", |_, state: &State| {
            state.effects.1 <= state.effects.0 && state.effects.1 <= 1
        }),
        Property::always("E2 steps are undone in reverse order", |_, state: &State| {
            let is_behind = state.bank.0 != Bank::Charged && (!state.shipping.0 || state.shipping.1);
            state.effects.1 == 0 || is_behind
        }),
        Property::always("E3 a finished saga has all of its steps", |_, state: &State| {
            state.rows.saga != SagaState::Finished
                || (state.effects == (1, 0)
                    && state.bank == (Bank::Charged, 1)
                    && state.shipping == (true, false)
                    && state.rows.request.0 == RequestRow::Done)
        }),
        Property::always("E3 an undone saga has none of them", |_, state: &State| {
            state.rows.saga != SagaState::Undone
                || (state.effects.0 == state.effects.1
                    && state.bank.0 != Bank::Charged
                    && state.shipping.0 == state.shipping.1)
        }),
        Property::always("E4 no kept reply waits for a saga that sleeps", |_, state: &State| {
            let sleeps = !state.is_owned && !state.is_due && state.rows.saga == SagaState::Running;
            !(sleeps && state.rows.has_reply && state.rows.request.0 == RequestRow::Waiting)
        }),
        Property::always("E4 no request times out whose reply is kept", |_, state: &State| {
            !(state.rows.has_reply && state.rows.request.0 == RequestRow::TimedOut)
        }),
        Property::always("a cancelled saga does not finish", |_, state: &State| {
            !(state.rows.is_cancelled && state.rows.saga == SagaState::Finished)
        }),
        Property::sometimes("it finishes", |_, state: &State| state.rows.saga == SagaState::Finished),
        Property::sometimes("all of it is undone", |_, state: &State| {
            state.rows.saga == SagaState::Undone && state.effects == (1, 1) && state.bank.1 == 2
        }),
        Property::sometimes("a call of unknown outcome is undone", |_, state: &State| {
            state.rows.call == (CallRow::GaveUp, Undo::Done) && state.bank == (Bank::Refunded, 2)
        }),
        Property::sometimes("two workers believe to have it", |_, state: &State| {
            state.workers.iter().all(|worker| matches!(worker, Worker::Holds { .. }))
        }),
        Property::sometimes("a worker that was paused is refused", |_, state: &State| state.is_fenced),
        Property::sometimes("a reply comes before the request", |_, state: &State| {
            state.rows.has_reply && state.rows.request.0 == RequestRow::Absent
        }),
        Property::sometimes("a late reply", |_, state: &State| state.has_late_reply),
        Property::sometimes("a second reply", |_, state: &State| state.has_second_reply),
        Property::sometimes("a request times out", |_, state: &State| {
            state.rows.request.0 == RequestRow::TimedOut
        }),
    ]
}
