//! Collects all events that concern the messages, rows and operations of a breach, in one pass over
//! the history for all breaches.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use uuid::Uuid;

use super::{Breach, Event};
use crate::history::{Consumer, History, InboxRow};

/// The breaches that need the events of each id, row and operation.
#[derive(Default)]
struct Wanted<'a> {
    ids: HashMap<Uuid, Vec<usize>>,
    rows: HashMap<&'a str, Vec<usize>>,
    operations: HashMap<&'a str, Vec<usize>>,
}

/// The events of each breach, bounded.
struct Slices {
    events: Vec<Vec<Event>>,
    events_max: usize,
}

impl Slices {
    fn add(&mut self, breaches: &[usize], event: impl Fn() -> Event) {
        for breach in breaches {
            let events = &mut self.events[*breach];
            if events.len() < self.events_max {
                events.push(event());
            }
        }
    }
}

/// Sets the events of every breach that has no events.
pub(super) fn fill(history: &History, breaches: Vec<&mut Breach>, events_max: usize) {
    let mut breaches: Vec<_> = breaches.into_iter().filter(|breach| breach.events.is_empty()).collect();
    if breaches.is_empty() {
        return;
    }
    let mut slices = Slices { events: vec![Vec::new(); breaches.len()], events_max };
    {
        let wanted = Wanted::by(&breaches);
        wanted.producer(history, &mut slices);
        wanted.broker(history, &mut slices);
        history.consumers.iter().for_each(|consumer| wanted.consumer(consumer, &mut slices));
    }
    for (breach, events) in breaches.iter_mut().zip(slices.events) {
        breach.events = events;
    }
}

impl<'a> Wanted<'a> {
    fn by(breaches: &'a [&mut Breach]) -> Self {
        fn want<K: Eq + Hash>(map: &mut HashMap<K, Vec<usize>>, key: K, breach: usize) {
            map.entry(key).or_default().push(breach);
        }
        let mut wanted = Self::default();
        for (index, Breach { subject, .. }) in breaches.iter().enumerate() {
            subject.ids.iter().for_each(|id| want(&mut wanted.ids, *id, index));
            subject.row.iter().for_each(|row| want(&mut wanted.rows, row, index));
            subject.operation.iter().for_each(|operation| want(&mut wanted.operations, operation, index));
        }
        wanted
    }

    fn id(&self, id: Uuid) -> &[usize] {
        self.ids.get(&id).map_or(&[], Vec::as_slice)
    }

    fn row(&self, row: &str) -> &[usize] {
        self.rows.get(row).map_or(&[], Vec::as_slice)
    }

    fn producer(&self, history: &History, slices: &mut Slices) {
        for operation in history.operations.iter().flatten() {
            let ids = operation
                .messages
                .iter()
                .map(|message| message.id)
                .chain(operation.undone_messages.iter().copied());
            let rows = operation.rows.iter().chain(&operation.undone_rows);
            let mut breaches: Vec<usize> = self.operations.get(&*operation.id).cloned().unwrap_or_default();
            breaches.extend(ids.flat_map(|id| self.id(id)));
            breaches.extend(rows.flat_map(|row| self.row(row)));
            breaches.sort_unstable();
            breaches.dedup();
            slices.add(&breaches, || Event::Operation {
                operation: Arc::clone(&operation.id),
                outcome: operation.outcome,
                started: operation.started,
                ended: operation.ended,
                messages: operation.messages.iter().map(|message| message.id).collect(),
                rows: operation.rows.clone(),
            });
        }
        for row in history.business.iter().flatten() {
            slices.add(self.row(&row.id), || Event::Business { row: Arc::clone(&row.id) });
        }
        for row in history.outbox.iter().flatten() {
            let mut breaches = self.id(row.id).to_vec();
            breaches.extend(row.row.iter().flat_map(|row| self.row(row)));
            breaches.dedup();
            slices.add(&breaches, || Event::Outbox {
                id: row.id,
                position: row.position,
                key: row.content.key.clone(),
                due: row.due,
                done: row.settled.or(row.passed),
            });
        }
        for id in history.removed.iter().flatten() {
            slices.add(self.id(*id), || Event::Removed { id: *id });
        }
    }

    fn broker(&self, history: &History, slices: &mut Slices) {
        for parked in history.parked.iter().flatten() {
            slices.add(self.id(parked.id), || Event::Parked { id: parked.id, state: parked.state });
        }
        for (nth, occurrence) in
            history.topic_read.iter().flat_map(|topic_read| &topic_read.occurrences).enumerate()
        {
            if let Some(id) = occurrence.id {
                let place = || Arc::clone(&occurrence.place);
                slices.add(self.id(id), || Event::Published { id: Some(id), place: place(), nth });
            }
        }
    }

    fn consumer(&self, consumer: &Consumer, slices: &mut Slices) {
        let name = || Arc::clone(&consumer.name);
        let mut remembered = |row: &InboxRow, expired| {
            slices.add(self.id(row.id), || {
                let scope = Arc::clone(&row.scope);
                Event::Remembered { id: row.id, consumer: name(), scope, expired }
            });
        };
        consumer.expired.iter().flatten().for_each(|row| remembered(row, true));
        consumer.inbox.iter().flatten().for_each(|row| remembered(row, false));
        for (nth, effect) in consumer.effects.iter().flatten().enumerate() {
            slices.add(self.id(effect.id), || {
                let scope = Arc::clone(&effect.scope);
                Event::Applied { id: effect.id, consumer: name(), scope, nth }
            });
        }
        for id in consumer.dead_letters.iter().flatten().filter_map(|letter| letter.id) {
            slices.add(self.id(id), || Event::DeadLetter { id, consumer: name() });
        }
    }
}
