//! Broken histories, one for each promise. The verdict must report that promise and no other.

use std::collections::BTreeSet;

use checker::{BusinessRow, Consumer, Content, Digest, Effect, InboxRow, Occurrence, OutboxRow, TopicRead};
use uuid::Uuid;

use super::*;
use crate::CONSUMER;
use crate::check::operations;
use crate::producer::payload;

/// A history without the operations that are derived from it.
#[derive(Clone)]
struct Seen(History);

fn content(payload: &[u8]) -> Content {
    Content { payload: Some(Digest::of(payload)), ..Content::default() }
}

fn business(number: u64, seq: u64, cents: u64) -> BusinessRow {
    let row = number.to_string();
    let payload = Some(Digest::of(&payload(&row, seq, cents)));
    BusinessRow { id: row.into(), messages: Some(1), payload }
}

fn outbox(id: u128, number: u64, key: &str, seq: u64) -> OutboxRow {
    let row = number.to_string();
    let content = Content { key: Some(key.into()), ..content(&payload(&row, seq, 100)) };
    let position = i64::try_from(id).unwrap();
    let (id, row, seq) = (Uuid::from_u128(id), Some(row.into()), Some(seq));
    OutboxRow { id, position, row, seq, content, ..OutboxRow::default() }
}

fn record(row: &OutboxRow) -> Occurrence {
    let content = Content { key: None, ..row.content.clone() };
    Occurrence { id: Some(row.id), content, ..Occurrence::default() }
}

fn effect(row: &OutboxRow) -> Effect {
    Effect { id: row.id, content: record(row).content, ..Effect::default() }
}

/// Returns a history of two customers with two orders each. All promises are kept, and one message
/// is published twice. Order 3 was rolled back.
fn good() -> Seen {
    let orders = [(1, "a", 1), (2, "b", 1), (4, "a", 2), (5, "b", 2)];
    let rows: Vec<OutboxRow> =
        orders.iter().map(|(number, key, seq)| outbox(u128::from(*number), *number, key, *seq)).collect();
    let mut occurrences: Vec<Occurrence> = rows.iter().map(record).collect();
    occurrences.push(record(&rows[0]));
    let inbox = rows.iter().map(|row| InboxRow { id: row.id, ..InboxRow::default() }).collect();
    Seen(History {
        quiet: true,
        business: Some(orders.iter().map(|(number, _, seq)| business(*number, *seq, 100)).collect()),
        consumers: vec![Consumer {
            name: CONSUMER.into(),
            inbox: Some(inbox),
            effects: Some(rows.iter().map(effect).collect()),
            ..Consumer::default()
        }],
        outbox: Some(rows),
        parked: Some(Vec::new()),
        topic_read: Some(TopicRead { ordered: true, complete: true, occurrences }),
        ..History::default()
    })
}

impl Seen {
    fn business(&mut self) -> &mut Vec<BusinessRow> {
        self.0.business.as_mut().unwrap()
    }

    fn outbox(&mut self) -> &mut Vec<OutboxRow> {
        self.0.outbox.as_mut().unwrap()
    }

    fn log(&mut self) -> &mut Vec<Occurrence> {
        &mut self.0.topic_read.as_mut().unwrap().occurrences
    }

    fn inbox(&mut self) -> &mut Vec<InboxRow> {
        self.0.consumers[0].inbox.as_mut().unwrap()
    }

    fn effects(&mut self) -> &mut Vec<Effect> {
        self.0.consumers[0].effects.as_mut().unwrap()
    }

    /// Adds an effect of a message, with its inbox row.
    fn apply(&mut self, row: &OutboxRow) {
        self.effects().push(effect(row));
        self.inbox().push(InboxRow { id: row.id, ..InboxRow::default() });
    }

    fn verdict(mut self) -> Verdict {
        let rows: Vec<String> = self.business().iter().map(|row| row.id.to_string()).collect();
        let enqueued: Vec<String> =
            self.outbox().iter().filter_map(|row| row.row.as_ref().map(ToString::to_string)).collect();
        let operations = operations(&BTreeSet::from([3]), rows.into_iter().chain(enqueued));
        Verdict::of(&History { operations: Some(operations), ..self.0 }, (400, 400))
    }

    /// Returns the number of breaches of each promise, in the order of [`Verdict::promises`].
    fn breaches(self) -> [usize; 7] {
        self.verdict().promises().map(<[Breach]>::len)
    }
}

#[test]
fn a_run_that_kept_every_promise_passes() {
    let verdict = good().verdict();
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!((verdict.orders, verdict.enqueued, verdict.published, verdict.records), (4, 4, 4, 5));
    assert_eq!((verdict.effects, verdict.cents_ordered, verdict.cents_charged), (4, 400, 400));
}

#[test]
fn an_order_without_its_message_is_not_atomic() {
    let mut seen = good();
    seen.outbox().remove(3);
    seen.log().retain(|record| record.id != Some(Uuid::from_u128(5)));
    seen.effects().pop();
    seen.inbox().pop();
    assert_eq!(seen.breaches(), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_message_without_its_order_is_not_atomic() {
    let mut seen = good();
    seen.business().pop();
    assert_eq!(seen.breaches(), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_order_with_two_messages_or_another_text_is_not_atomic() {
    let mut seen = good();
    let twin = outbox(50, 5, "b", 2);
    seen.log().push(record(&twin));
    seen.apply(&twin);
    seen.outbox().push(twin);
    let found = seen.breaches();
    assert_eq!((found[0], found[1]), (1, 0), "{found:?}");
    let mut seen = good();
    seen.business()[0] = business(1, 1, 1);
    assert_eq!(seen.breaches(), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn whatever_was_rolled_back_is_a_phantom_wherever_it_shows() {
    let row = outbox(3, 3, "a", 2);
    let mut published = good();
    published.log().push(record(&row));
    assert_eq!(published.breaches()[1], 1);
    let mut enqueued = good();
    enqueued.outbox().push(row.clone());
    assert_eq!(enqueued.breaches()[1], 1);
    let mut applied = good();
    applied.apply(&row);
    assert_eq!(applied.breaches(), [0, 2, 0, 0, 0, 0, 0]);
    let mut stored = good();
    stored.business().push(business(3, 3, 1));
    assert_eq!(stored.breaches()[1], 1);
    let mut nameless = good();
    nameless.log().push(Occurrence { content: content(b"?"), ..Occurrence::default() });
    assert_eq!(nameless.breaches(), [0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_message_that_was_never_published_is_lost() {
    let mut seen = good();
    seen.log().remove(3);
    assert_eq!(seen.breaches(), [0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn first_occurrences_out_of_order_are_counted_and_repetitions_are_not() {
    let mut seen = good();
    seen.log().swap(0, 2);
    seen.log().pop();
    assert_eq!(seen.clone().breaches(), [0, 0, 0, 1, 0, 0, 0]);
    seen.0.topic_read.as_mut().unwrap().ordered = false;
    assert_eq!(seen.verdict().order_violations, None);
}

#[test]
fn a_message_without_effect_is_a_lost_effect() {
    let mut seen = good();
    seen.effects().pop();
    seen.inbox().pop();
    assert_eq!(seen.breaches(), [0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn a_second_effect_is_a_duplicate_effect() {
    let mut seen = good();
    let first = seen.effects()[0].clone();
    seen.effects().push(first);
    assert_eq!(seen.breaches(), [0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn effects_and_inbox_rows_belong_together_unless_the_guard_is_off() {
    let mut seen = good();
    seen.inbox().pop();
    assert_eq!(seen.clone().breaches(), [0, 0, 0, 0, 0, 1, 0]);
    seen.0.consumers[0].inbox = None;
    assert_eq!(seen.breaches(), [0; 7]);
    let mut seen = good();
    seen.effects().pop();
    assert_eq!(seen.breaches()[4], 2);
}

#[test]
fn one_id_with_two_payloads_is_altered() {
    let mut seen = good();
    seen.log()[4].content = content(&payload("1", 1, 999));
    assert_eq!(seen.breaches(), [0, 0, 0, 0, 0, 0, 1]);
    let mut seen = good();
    seen.effects()[2].content = content(b"{}");
    assert_eq!(seen.breaches(), [0, 0, 0, 0, 0, 0, 1]);
}
