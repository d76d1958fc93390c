//! The observations of a run, in the words of the independent checker.

use std::sync::Arc;

use checker::{
    BusinessRow, Consumer, Content, Digest, Effect, History, InboxRow, Occurrence, Operation, OutboxRow,
    Outcome, TopicRead,
};

use super::observations::{Observations, Order};
use crate::demo::shop::{CONSUMER, Facts, payload_of};

/// The name of an order in a history.
fn name(number: u64) -> Arc<str> {
    number.to_string().into()
}

impl Observations {
    /// The history of this run.
    pub(super) fn history(&self) -> History {
        let effects = self.effects.iter().map(|effect| Effect {
            id: effect.id,
            content: payload_only(&effect.payload),
            ..Effect::default()
        });
        let inbox = self.inbox.iter().map(|id| InboxRow { id: *id, ..InboxRow::default() });
        History {
            quiet: true,
            operations: Some(self.operations()),
            business: Some(self.orders.iter().map(business).collect()),
            outbox: Some(self.outbox()),
            // In a demo nothing needs to be parked or put aside; whatever is counts as lost.
            parked: Some(Vec::new()),
            topic_read: Some(self.topic_read()),
            consumers: vec![Consumer {
                name: CONSUMER.into(),
                inbox: self.guarded.then(|| inbox.collect()),
                effects: Some(effects.collect()),
                ..Consumer::default()
            }],
            ..History::default()
        }
    }

    /// Returns the operations of this run. Orders that were rolled back on purpose have failed, and
    /// must not be there. The outcome of the others is unknown: one may have been tried again, and
    /// a run may have ended before.
    fn operations(&self) -> Vec<Operation> {
        let operation = |number: u64, outcome| Operation {
            id: format!("order {number}").into(),
            outcome,
            rows: vec![name(number)],
            ..Operation::default()
        };
        let undone = self.rolled_back.iter().map(|number| operation(*number, Outcome::Failed));
        let tried = self.orders.iter().map(|order| order.number).chain(self.enqueued_orders());
        let tried = tried.filter(|number| !self.rolled_back.contains(number));
        undone.chain(tried.map(|number| operation(number, Outcome::Unknown))).collect()
    }

    /// Orders of which the outbox knows.
    fn enqueued_orders(&self) -> impl Iterator<Item = u64> {
        self.outbox.iter().filter_map(|row| Facts::read(&row.payload)).map(|facts| facts.order)
    }

    fn outbox(&self) -> Vec<OutboxRow> {
        let row = |(position, row): (usize, &super::observations::OutboxRow)| {
            let facts = Facts::read(&row.payload);
            let key = facts.as_ref().map(|facts| facts.customer.as_str().into());
            OutboxRow {
                id: row.id,
                position: position as i64,
                // A row that cannot be read has no order; it names one that does not exist.
                row: Some(facts.as_ref().map_or_else(|| "?".into(), |facts| name(facts.order))),
                seq: facts.map(|facts| facts.seq),
                content: Content { key, ..payload_only(&row.payload) },
                ..OutboxRow::default()
            }
        };
        self.outbox.iter().enumerate().map(row).collect()
    }

    /// Keys are kept apart by the checker, so everything can stand in one place.
    fn topic_read(&self) -> TopicRead {
        let seen = self.log.iter().map(|record| Occurrence {
            id: record.id,
            content: payload_only(&record.payload),
            ..Occurrence::default()
        });
        TopicRead { ordered: self.ordered, complete: true, occurrences: seen.collect() }
    }
}

fn business(order: &Order) -> BusinessRow {
    let payload = payload_of(order.number, &order.customer, order.seq, order.cents);
    BusinessRow { id: name(order.number), messages: Some(1), payload: Some(Digest::of(&payload)) }
}

fn payload_only(payload: &[u8]) -> Content {
    Content { payload: Some(Digest::of(payload)), ..Content::default() }
}
