//! Properties that must hold in every state, and states that must be reachable for the model to
//! mean anything.

use stateright::Property;

use super::leader::still_to_read;
use super::{Relay, Relays, State};
use crate::sets::{Entry, Set};

pub(super) fn properties() -> Vec<Property<Relays>> {
    vec![
        Property::always("G4 causal order per key", |_, state: &State| in_causal_order(state)),
        Property::always("G3 nothing is published that did not commit", |_, state: &State| {
            state.published().is_within(state.visible())
        }),
        Property::always("G2 the cursor never passes what the broker does not hold", |_, state: &State| {
            state.cursor.settled().is_within(state.published())
        }),
        Property::always("G2 what the broker does not hold is still to be read", |model, state: &State| {
            let to_read = still_to_read(model, state.cursor, state.visible());
            state.visible().is_within(state.published().and(to_read))
        }),
        Property::always("a lease that is over changes nothing", |_, state: &State| !state.stale_checkpoint),
        Property::always("G5 at most one effect", |_, state: &State| {
            state.effects.iter().all(|times| *times <= 1)
        }),
        Property::always("G5 an inbox row if and only if an effect", |_, state: &State| {
            (0..state.effects.len())
                .all(|entry| state.inbox.has(entry as Entry) == (state.effects[entry] > 0))
        }),
        Property::always("G5 nothing acknowledged without its effect", |_, state: &State| {
            let waits = state.acked_early.is_some();
            let acknowledged = state.log[..state.acknowledged].iter();
            waits || acknowledged.clone().all(|entry| state.effects[usize::from(*entry)] > 0)
        }),
        Property::sometimes("two relays believe that they lead", |_, state: &State| {
            state.relays.iter().all(|relay| matches!(relay, Relay::Leading(_)))
        }),
        Property::sometimes("a zombie publishes", |_, state: &State| state.zombie_published),
        Property::sometimes("the broker holds a copy", |_, state: &State| {
            state.log.len() > state.published().iter().count()
        }),
        Property::sometimes("a later id commits and leaves first", |_, state: &State| {
            state.log.first().is_some_and(|first| *first > 0) && state.visible().has(0)
        }),
        Property::sometimes("everything is published, settled and applied", |_, state: &State| {
            let all =
                (0..state.transactions.len()).fold(Set::default(), |set, entry| set.with(entry as Entry));
            state.visible() == all && state.cursor.settled() == all && state.inbox == all
        }),
    ]
}

/// Returns whether every published entry follows those that had committed before it was enqueued.
fn in_causal_order(state: &State) -> bool {
    let mut seen = Set::default();
    state.log.iter().all(|entry| {
        let is_new = !seen.has(*entry);
        let is_in_order = state.before[usize::from(*entry)].is_within(seen);
        seen = seen.with(*entry);
        !is_new || is_in_order
    })
}
