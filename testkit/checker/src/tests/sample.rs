//! A small system without any defect: two keys, six messages, two consumers, a takeover.

use std::sync::Arc;

use uuid::Uuid;

use crate::{
    Balance, BusinessRow, Consumer, Content, DeadLetter, Digest, Effect, Enqueued, Forgotten, History,
    InboxRow, LeaseEvent, Occurrence, Operation, OutboxRow, Outcome, Parked, ParkedEntry, SagaRun, SagaState,
    Sagas, StepEffect, TopicRead,
};

/// Returns the id of the message with this number.
pub(super) fn id(number: u64) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

/// Returns the name of the business row that caused the message with this number.
pub(super) fn row_name(number: u64) -> Arc<str> {
    format!("order-{number}").into()
}

/// Returns the content of a message. Odd numbers have one key, even numbers the other.
pub(super) fn content(number: u64) -> Content {
    let key = if number % 2 == 1 { "odd" } else { "even" };
    let headers = Some(Digest::of_headers([("number", number.to_string())]));
    Content { headers, ..Content::of(key, &number.to_be_bytes()) }
}

/// Returns an operation that writes one row and its message. Operations do not overlap.
pub(super) fn operation(number: u64, outcome: Outcome) -> Operation {
    let message = Enqueued {
        id: id(number),
        seq: Some(number.div_ceil(2)),
        content: content(number),
        ..Enqueued::default()
    };
    Operation {
        id: format!("op-{number}").into(),
        outcome,
        started: Some(number * 10),
        ended: (outcome != Outcome::Unknown).then_some(number * 10 + 5),
        messages: vec![message],
        rows: vec![row_name(number)],
        ..Operation::default()
    }
}

pub(super) fn business(number: u64) -> BusinessRow {
    let payload = Some(Digest::of(&number.to_be_bytes()));
    BusinessRow { id: row_name(number), messages: Some(1), payload }
}

pub(super) fn outbox(number: u64) -> OutboxRow {
    OutboxRow {
        id: id(number),
        position: number as i64,
        row: Some(row_name(number)),
        settled: Some(true),
        passed: Some(true),
        content: content(number),
        ..OutboxRow::default()
    }
}

pub(super) fn occurrence(number: u64) -> Occurrence {
    Occurrence { id: Some(id(number)), place: "events/0".into(), content: content(number) }
}

pub(super) fn effect(number: u64) -> Effect {
    Effect { id: id(number), scope: "".into(), content: content(number) }
}

pub(super) fn inbox(number: u64) -> InboxRow {
    InboxRow { id: id(number), scope: "".into(), content: Content::default() }
}

pub(super) fn granted(epoch: u64) -> LeaseEvent {
    LeaseEvent::Granted { lease: "main".into(), epoch, holder: format!("relay-{epoch}").into() }
}

pub(super) fn wrote(epoch: u64, applied: bool) -> LeaseEvent {
    let holder = format!("relay-{epoch}").into();
    LeaseEvent::Wrote { lease: "main".into(), epoch, holder, applied, what: "cursor".into() }
}

/// Returns a good history. Operations 1 to 6 are committed, 6 with an unknown outcome; 7 failed; 8
/// has an unknown outcome and did not commit. Message 5 is dead, and message 3 before it was
/// published twice. Message 4 is a dead letter of the second consumer. Message 9 was removed by
/// retention, and message 10 was undone.
pub(super) fn good() -> History {
    let outcome = |number| match number {
        6 | 8 => Outcome::Unknown,
        7 => Outcome::Failed,
        _ => Outcome::Ok,
    };
    let mut operations: Vec<_> = (1..=9).map(|number| operation(number, outcome(number))).collect();
    operations[0].undone_messages.push(id(10));
    operations[0].undone_rows.push(row_name(10));
    let mut rows: Vec<_> = (1..=6).map(outbox).collect();
    rows[4].settled = Some(false);
    let applied = [1, 2, 3, 4, 6, 9];
    let consumer = |name: &str, applied: &[u64]| Consumer {
        name: name.into(),
        ordered: true,
        inbox: Some(applied.iter().map(|number| inbox(*number)).collect()),
        expired: Some(Vec::new()),
        effects: Some(applied.iter().map(|number| effect(*number)).collect()),
        dead_letters: Some(Vec::new()),
        ..Consumer::default()
    };
    let mut second = consumer("second", &[1, 2, 3, 6, 9]);
    second.dead_letters = Some(vec![DeadLetter { id: Some(id(4)), scope: "".into() }]);
    History {
        quiet: true,
        operations: Some(operations),
        business: Some([1, 2, 3, 4, 5, 6, 9].map(business).into()),
        outbox: Some(rows),
        parked: Some(vec![Parked { id: id(5), state: ParkedEntry::Dead }]),
        removed: Some(vec![id(9)]),
        forgotten: Forgotten::default(),
        topic_read: Some(TopicRead {
            ordered: true,
            complete: true,
            occurrences: [1, 2, 3, 1, 4, 3, 6, 9].map(occurrence).into(),
        }),
        consumers: vec![consumer("first", &applied), second],
        leases: Some(vec![granted(1), wrote(1, true), granted(2), wrote(1, false), wrote(2, true)]),
        leaks: Some(Vec::new()),
        sagas: Some(sagas()),
    }
}

/// Returns an effect of a step, or of its undo.
pub(super) fn did(saga: &str, step: &str, is_undo: bool, amount: i64) -> StepEffect {
    let service = if step == "charge" { "bank" } else { "stock" };
    StepEffect { saga: saga.into(), step: step.into(), service: service.into(), is_undo, amount }
}

/// Returns two sagas: the first is finished, the second was undone when the bank refused.
fn sagas() -> Sagas {
    let run = |id: &str, state| SagaRun { id: id.into(), state };
    let balance = |service: &str, taken| Balance { service: service.into(), account: "all".into(), taken };
    Sagas {
        orders: vec!["first".into(), "second".into()],
        runs: vec![run("first", SagaState::Finished), run("second", SagaState::Undone)],
        steps: vec!["reserve".into(), "charge".into()],
        effects: vec![
            did("first", "reserve", false, 1),
            did("second", "reserve", false, 1),
            did("first", "charge", false, 500),
            did("second", "reserve", true, 1),
        ],
        balances: vec![balance("stock", 1), balance("bank", 500)],
    }
}
