//! Properties that must hold in every state, and states that must be reachable for the model to
//! mean anything.

use stateright::Property;

use super::Transactions;
use super::state::{Process, State};
use crate::sets::Set;

pub(super) fn properties() -> Vec<Property<Transactions>> {
    vec![
        Property::always("transactions: nobody sees an entry twice", |_, state: &State| {
            let log = &state.broker.log;
            log.iter().enumerate().all(|(at, entry)| !log[..at].contains(entry))
        }),
        Property::always("transactions: the entries of a key are seen in order", |model, state: &State| {
            let log = &state.broker.log;
            log.iter().enumerate().all(|(at, entry)| {
                let mut before = (0..*entry).filter(|other| model.key(*other) == model.key(*entry));
                before.all(|other| log[..at].contains(&other))
            })
        }),
        Property::always("transactions: nothing is passed that nobody sees", |_, state: &State| {
            let seen = state.broker.log.iter().copied().fold(Set::default(), Set::with);
            let stored = state.database.checkpoint;
            let passed = (0..stored.cursor).fold(Set::default(), Set::with).without(stored.parked);
            let marked = state.broker.mark.map_or(Set::default(), |mark| {
                (0..mark.cursor).fold(mark.settled, Set::with).without(mark.parked)
            });
            passed.and(marked).is_within(seen)
        }),
        Property::always("the database is at the mark or one behind it", |_, state: &State| {
            let last = state.broker.mark.map_or(0, |mark| mark.number);
            let stored = state.database.checkpoint.number;
            state.restores > 0 || stored == last || stored + 1 == last
        }),
        Property::sometimes("everything is seen", |model, state: &State| {
            state.broker.log.len() == model.keys.len()
        }),
        Property::sometimes("everything is seen after a restore", |model, state: &State| {
            state.restores > 0 && state.broker.log.len() == model.keys.len() && state.faults > 0
        }),
        Property::sometimes("a session that was shut out is refused", |_, state: &State| state.has_fenced),
        Property::sometimes("a mark is brought to the database", |_, state: &State| state.has_brought),
        Property::sometimes("a commit is heard of by nobody", |_, state: &State| state.has_unheard),
        Property::sometimes("a new leader passes what has left ahead", |_, state: &State| state.has_passed),
        Property::sometimes("a parked entry leaves", |_, state: &State| state.has_requeued),
        Property::sometimes("a batch leaves while the one before is committed", |_, state: &State| {
            let closed = state.processes.iter().filter_map(|process| match process {
                Process::Leading(leader) => leader.closed,
                _ => None,
            });
            let mut others = closed.map(|closed| &state.broker.open[1 - closed.producer]);
            others.any(|entries| !entries.is_empty())
        }),
        Property::sometimes("two processes believe to lead", |_, state: &State| {
            state.processes.iter().all(|process| matches!(process, Process::Leading(_)))
        }),
        Property::sometimes("a restore stops a process", |_, state: &State| {
            state.processes.contains(&Process::Stopped)
        }),
    ]
}
