//! Broken histories, one per promise: the verdict must object to each, and to nothing else.

use std::collections::BTreeSet;

use super::super::observations::{Effect, LogRecord, Order, OutboxRow};
use super::*;
use crate::shop::payload_of;

/// Two customers with two orders each, all promises kept, one message published twice.
fn good() -> Observations {
    let order = |number, customer: &str, seq| Order { number, customer: customer.into(), seq, cents: 100 };
    let orders = vec![order(1, "a", 1), order(2, "b", 1), order(4, "a", 2), order(5, "b", 2)];
    let outbox: Vec<OutboxRow> = orders
        .iter()
        .map(|order| OutboxRow {
            id: Uuid::from_u128(order.number.into()),
            payload: payload_of(order.number, &order.customer, order.seq, 100),
        })
        .collect();
    let record = |row: &OutboxRow| LogRecord { id: Some(row.id), payload: row.payload.clone() };
    let mut log: Vec<LogRecord> = outbox.iter().map(record).collect();
    log.push(record(&outbox[0]));
    let effect = |row: &OutboxRow| Effect { id: row.id, cents: 100, payload: row.payload.clone() };
    Observations {
        rolled_back: BTreeSet::from([3]),
        inbox: outbox.iter().map(|row| row.id).collect(),
        effects: outbox.iter().map(effect).collect(),
        orders,
        outbox,
        log,
        ordered: true,
        guarded: true,
    }
}

/// How many breaches each promise has, in the order of [`Verdict::promises`].
fn breaches(history: &Observations) -> [usize; 7] {
    Verdict::of(history).promises().map(<[Breach]>::len)
}

const PHANTOM_ORDER: u64 = 3;

fn phantom_row() -> OutboxRow {
    OutboxRow { id: Uuid::from_u128(3), payload: payload_of(PHANTOM_ORDER, "a", 2, 100) }
}

#[test]
fn a_run_that_kept_every_promise_passes() {
    let verdict = Verdict::of(&good());
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!((verdict.orders, verdict.enqueued, verdict.published, verdict.records), (4, 4, 4, 5));
    assert_eq!((verdict.effects, verdict.cents_ordered, verdict.cents_charged), (4, 400, 400));
}

#[test]
fn an_order_without_its_message_is_not_atomic() {
    let mut history = good();
    history.outbox.remove(3);
    history.log.retain(|record| record.id != Some(Uuid::from_u128(5)));
    history.effects.pop();
    history.inbox.pop();
    assert_eq!(breaches(&history), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_message_without_its_order_is_not_atomic() {
    let mut history = good();
    history.orders.pop();
    assert_eq!(breaches(&history), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_order_with_two_messages_or_another_text_is_not_atomic() {
    let mut history = good();
    let twin = OutboxRow { id: Uuid::from_u128(50), payload: history.outbox[3].payload.clone() };
    history.log.push(LogRecord { id: Some(twin.id), payload: twin.payload.clone() });
    history.effects.push(Effect { id: twin.id, cents: 100, payload: twin.payload.clone() });
    history.inbox.push(twin.id);
    history.outbox.push(twin);
    let found = breaches(&history);
    assert_eq!((found[0], found[1]), (1, 0), "{found:?}");
    let mut history = good();
    history.orders[0].cents = 1;
    assert_eq!(breaches(&history), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn whatever_was_rolled_back_is_a_phantom_wherever_it_shows() {
    let row = phantom_row();
    let mut published = good();
    published.log.push(LogRecord { id: Some(row.id), payload: row.payload.clone() });
    assert_eq!(breaches(&published)[1], 1);
    let mut enqueued = good();
    enqueued.outbox.push(row.clone());
    assert_eq!(breaches(&enqueued)[1], 1);
    let mut applied = good();
    applied.effects.push(Effect { id: row.id, cents: 100, payload: row.payload });
    applied.inbox.push(row.id);
    assert_eq!(breaches(&applied), [0, 2, 0, 0, 0, 0, 0]);
    let mut stored = good();
    stored.orders.push(Order { number: PHANTOM_ORDER, customer: "a".into(), seq: 3, cents: 1 });
    assert_eq!(breaches(&stored)[1], 1);
    let mut nameless = good();
    nameless.log.push(LogRecord { id: None, payload: b"?".to_vec() });
    assert_eq!(breaches(&nameless), [0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_message_that_was_never_published_is_lost() {
    let mut history = good();
    history.log.remove(3);
    assert_eq!(breaches(&history), [0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn first_occurrences_out_of_order_are_counted_and_repetitions_are_not() {
    let mut history = good();
    history.log.swap(0, 2);
    history.log.pop();
    assert_eq!(breaches(&history), [0, 0, 0, 1, 0, 0, 0]);
    history.ordered = false;
    assert_eq!(Verdict::of(&history).order_violations, None);
}

#[test]
fn a_message_without_effect_is_a_lost_effect() {
    let mut history = good();
    history.effects.pop();
    history.inbox.pop();
    assert_eq!(breaches(&history), [0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn a_second_effect_is_a_duplicate_effect() {
    let mut history = good();
    history.effects.push(history.effects[0].clone());
    assert_eq!(breaches(&history), [0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn effects_and_inbox_rows_belong_together_unless_the_guard_is_off() {
    let mut history = good();
    history.inbox.pop();
    assert_eq!(breaches(&history), [0, 0, 0, 0, 0, 1, 0]);
    history.inbox.clear();
    history.guarded = false;
    assert_eq!(breaches(&history), [0; 7]);
    let mut history = good();
    history.effects.pop();
    assert_eq!(breaches(&history)[4], 2);
}

#[test]
fn one_id_with_two_payloads_is_altered() {
    let mut history = good();
    history.log[4].payload = payload_of(1, "a", 1, 999);
    assert_eq!(breaches(&history), [0, 0, 0, 0, 0, 0, 1]);
    let mut history = good();
    history.effects[2].payload = b"{}".to_vec();
    assert_eq!(breaches(&history), [0, 0, 0, 0, 0, 0, 1]);
}
