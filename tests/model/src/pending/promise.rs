//! Properties that must hold in every state, and states that must be reachable so that the model
//! means anything.

use stateright::Property;

use super::Pending;
use super::state::{Process, State};

pub(super) fn properties() -> Vec<Property<Pending>> {
    vec![
        Property::always("pending: no committed message is lost", |model, state: &State| {
            let noted = state.database.pending.and(model.unnoted(state));
            state.database.committed.is_within(noted.and(state.effects))
        }),
        Property::always("pending: the messages of a key take effect in order", |_, state: &State| {
            !state.is_turned
        }),
        Property::sometimes("every message takes effect", |model, state: &State| {
            state.effects.iter().count() == model.keys.len()
        }),
        Property::sometimes("a lower id is read after a higher one was sent", |_, state: &State| {
            state.has_come_late
        }),
        Property::sometimes("a failover brings back what has taken effect", |model, state: &State| {
            state.has_come_back || model.faults_max == 0 || model.has_gaps
        }),
        Property::sometimes("an id is drawn again", |model, state: &State| {
            state.has_reused || model.faults_max == 0
        }),
        Property::sometimes("a checkpoint is refused", |model, state: &State| {
            state.has_fenced || model.epochs_max == 1
        }),
        Property::sometimes("a read view leaves out a committed transaction", |model, state: &State| {
            state.has_left_out || !model.has_gaps
        }),
        Property::sometimes("two processes believe that they lead", |model, state: &State| {
            let mut leaders = state.processes.iter();
            leaders.all(|process| matches!(process, Process::Leading(_))) || model.epochs_max == 1
        }),
    ]
}
