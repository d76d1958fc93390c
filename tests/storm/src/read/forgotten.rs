//! Messages and rows that were lost when the database was reset to an earlier state, and rows whose
//! order no longer counts. Pure.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use checker::{Forgotten, History, Operation, Outcome};

use crate::journal::{SetBack, WentBack};

/// Adds the data that the database has forgotten to the history. A message that was written again
/// since then under the same id still counts. Its first copy was published earlier, so its order no
/// longer matters.
pub(super) fn forget(history: &mut History, times: &[WentBack]) {
    let messages = latest(times.iter().flat_map(|time| time.messages.iter().map(|id| (*id, time.at))));
    let rows = latest(
        times.iter().flat_map(|time| time.rows.iter().map(|row| (Arc::<str>::from(row.as_str()), time.at))),
    );
    for row in history.outbox.iter_mut().flatten() {
        row.out_of_turn |= messages.contains_key(&row.id);
    }
    let operations = history.operations.iter_mut().flatten();
    for message in operations.flat_map(|operation| &mut operation.messages) {
        message.out_of_turn |= messages.contains_key(&message.id);
    }
    let mut there: HashSet<_> = history.outbox.iter().flatten().map(|row| row.id).collect();
    let mut rows_there: HashSet<_> = history.business.iter().flatten().map(|row| row.id.clone()).collect();
    for operation in history.operations.iter().flatten() {
        let ids = operation.messages.iter().map(|message| message.id);
        there.extend(ids.filter(|id| is_promised_since(operation, messages.get(id))));
        let names = operation.rows.iter().filter(|row| is_promised_since(operation, rows.get(*row)));
        rows_there.extend(names.cloned());
    }
    history.forgotten = Forgotten {
        messages: messages.into_keys().filter(|id| !there.contains(id)).collect(),
        rows: rows.into_keys().filter(|row| !rows_there.contains(row)).collect(),
    };
}

/// Marks rows with ids that were assigned twice as out of turn. If the relay has not read them yet,
/// later rows may be published first.
pub(super) fn mix_up(history: &mut History, times: &[SetBack]) {
    for row in history.outbox.iter_mut().flatten() {
        row.out_of_turn |= times.iter().any(|ids| row.position > ids.above && row.position <= ids.up_to);
    }
}

/// Returns whether a client began after the database had been set back, and was told that the
/// operation is done. Then the operation's rows must be there.
fn is_promised_since(operation: &Operation, went_back: Option<&u64>) -> bool {
    let began = operation.started.unwrap_or_default();
    operation.outcome == Outcome::Ok && went_back.is_some_and(|at| began > *at)
}

/// Returns the last time at which each item was forgotten.
fn latest<T: Eq + Hash>(times: impl Iterator<Item = (T, u64)>) -> HashMap<T, u64> {
    let mut latest = HashMap::new();
    for (what, at) in times {
        let known = latest.entry(what).or_insert(at);
        *known = at.max(*known);
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::{BusinessRow, Enqueued, Occurrence, OutboxRow, Promise, TopicRead, Verdict};
    use uuid::Uuid;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    /// Returns a transaction that began at this time and was reported as done, with one row and one
    /// message of this number.
    fn operation(number: u128, started: u64) -> Operation {
        Operation {
            id: format!("{number} at {started}").into(),
            outcome: Outcome::Ok,
            started: Some(started),
            ended: Some(started + 1),
            messages: vec![Enqueued { id: id(number), ..Enqueued::default() }],
            rows: vec![format!("row {number}").into()],
            ..Operation::default()
        }
    }

    /// Returns a history in which the database was reset, at 100, to a state without transaction 2.
    /// Messages 1 and 2 were published.
    fn history(operations: Vec<Operation>, there: &[u128]) -> History {
        let row = |number: &u128| OutboxRow { id: id(*number), ..OutboxRow::default() };
        let business =
            |number: &u128| BusinessRow { id: format!("row {number}").into(), ..BusinessRow::default() };
        let seen = |number| Occurrence { id: Some(id(number)), ..Occurrence::default() };
        let mut history = History {
            quiet: true,
            operations: Some(operations),
            business: Some(there.iter().map(business).collect()),
            outbox: Some(there.iter().map(row).collect()),
            parked: Some(Vec::new()),
            topic_read: Some(TopicRead {
                complete: true,
                occurrences: vec![seen(1), seen(2)],
                ..TopicRead::default()
            }),
            ..History::default()
        };
        let went_back = WentBack { at: 100, messages: vec![id(2)], rows: vec!["row 2".into()] };
        forget(&mut history, &[went_back]);
        history
    }

    #[test]
    fn ids_that_were_given_out_twice_have_no_turn() {
        let row = |position| OutboxRow { position, ..OutboxRow::default() };
        let mut history = History { outbox: Some((1..=5).map(row).collect()), ..History::default() };
        mix_up(&mut history, &[SetBack { above: 1, up_to: 2 }, SetBack { above: 3, up_to: 4 }]);
        let mixed = history.outbox.iter().flatten().filter(|row| row.out_of_turn).map(|row| row.position);
        assert_eq!(mixed.collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn what_was_undone_is_owed_to_nobody() {
        let history = history(vec![operation(1, 10), operation(2, 20)], &[1]);
        assert_eq!(history.forgotten.messages, [id(2)]);
        assert!(Verdict::of(&history).holds(), "{}", Verdict::of(&history));
    }

    #[test]
    fn what_was_there_before_is_owed_still() {
        let history = history(vec![operation(1, 10), operation(2, 20)], &[]);
        assert!(!Verdict::of(&history).ruling(Promise::HonestOutcomes).holds());
    }

    #[test]
    fn what_was_written_again_is_there_out_of_its_turn() {
        let history = history(vec![operation(1, 10), operation(2, 20), operation(2, 200)], &[1, 2]);
        assert_eq!(history.forgotten, Forgotten::default());
        assert!(history.outbox.iter().flatten().all(|row| row.out_of_turn == (row.id == id(2))));
        assert!(Verdict::of(&history).holds(), "{}", Verdict::of(&history));
    }

    #[test]
    fn what_was_promised_again_must_be_there() {
        let history = history(vec![operation(1, 10), operation(2, 20), operation(2, 200)], &[1]);
        assert_eq!(history.forgotten, Forgotten::default());
        assert!(!Verdict::of(&history).ruling(Promise::HonestOutcomes).holds());
    }
}
