//! Properties that must hold in every state, and states that must be reachable for the model to
//! mean anything.

use stateright::Property;

use super::{Consumers, Inbox, State, Work};
use crate::sets::Entry;

pub(super) fn properties() -> Vec<Property<Consumers>> {
    vec![
        Property::always("G5 at most one effect per consumer", |_, state: &State| {
            every(state, |inbox, entry| inbox.effects[usize::from(entry)] <= 1)
        }),
        Property::always("G5 an inbox row if and only if an effect", |_, state: &State| {
            every(state, |inbox, entry| {
                let has_effect = inbox.effects[usize::from(entry)] > 0;
                entry < state.horizon || inbox.rows.has(entry) == has_effect
            })
        }),
        Property::always(
            "G5, G6 what is acknowledged took effect or is dead-lettered",
            |_, state: &State| {
                state.inboxes.iter().all(|inbox| {
                    inbox.acknowledged.iter().all(|place| {
                        let entry = state.entry(place.into());
                        inbox.effects[usize::from(entry)] > 0 || inbox.dead.has(entry)
                    })
                })
            },
        ),
        Property::sometimes("two workers have one delivery in hand", |_, state: &State| {
            let in_hand =
                |work: &Work| matches!(work, Work::Received(_) | Work::Applied(_) | Work::Settled(_));
            let first = state.workers.first().filter(|work| in_hand(work));
            first.is_some() && state.workers.get(1) == first
        }),
        Property::sometimes("a copy is recognised", |_, state: &State| state.suppressed),
        Property::sometimes("an expired message that took effect comes again", |_, state: &State| {
            state
                .inboxes
                .iter()
                .any(|inbox| inbox.dead.iter().any(|entry| inbox.effects[usize::from(entry)] > 0))
        }),
        Property::sometimes("everything is acknowledged by everybody", |_, state: &State| {
            state.inboxes.iter().all(|inbox| inbox.acknowledged.iter().count() == state.log.len())
        }),
    ]
}

fn every(state: &State, holds: impl Fn(&Inbox, Entry) -> bool) -> bool {
    state.inboxes.iter().all(|inbox| (0..inbox.effects.len()).all(|entry| holds(inbox, entry as Entry)))
}
