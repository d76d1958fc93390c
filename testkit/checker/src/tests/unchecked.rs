//! Promises about parts that were not observed are reported as not checked.

use super::sample::good;
use crate::{History, Promise, Verdict};

type Forget = fn(&mut History);

/// A part to remove, and the promises that cannot be checked without it.
const FORGOTTEN: [(Forget, &[Promise]); 12] = [
    (|h| h.operations = None, &[Promise::HonestOutcomes, Promise::CausalOrder]),
    (
        |h| h.outbox = None,
        &[
            Promise::Atomic,
            Promise::HonestOutcomes,
            Promise::NoLoss,
            Promise::NoPhantom,
            Promise::SettledIsStored,
            Promise::CursorIsTrue,
            Promise::ExactlyOnce,
            Promise::Containment,
        ],
    ),
    (
        |h| h.parked = None,
        &[
            Promise::NoLoss,
            Promise::SettledIsStored,
            Promise::CursorIsTrue,
            Promise::ExactlyOnce,
            Promise::Containment,
            Promise::Retention,
        ],
    ),
    (
        |h| h.topic_read = None,
        &[Promise::NoLoss, Promise::SettledIsStored, Promise::CursorIsTrue, Promise::Retention],
    ),
    (
        |h| h.topic_read.iter_mut().for_each(|topic_read| topic_read.complete = false),
        &[Promise::NoLoss, Promise::SettledIsStored, Promise::CursorIsTrue, Promise::Retention],
    ),
    (|h| h.consumers.clear(), &[Promise::AtMostOnce, Promise::ExactlyOnce, Promise::InboxIffEffect]),
    (|h| h.consumers.iter_mut().for_each(|consumer| consumer.inbox = None), &[Promise::InboxIffEffect]),
    (|h| h.leases = None, &[Promise::Fencing]),
    (|h| h.leaks = None, &[Promise::NoLeak]),
    (
        |h| h.sagas = None,
        &[Promise::SagaStarts, Promise::SagaSteps, Promise::SagaUndos, Promise::SagaEnds, Promise::SagaMoney],
    ),
    (
        |h| h.quiet = false,
        &[Promise::NoLoss, Promise::ExactlyOnce, Promise::Containment, Promise::NoLeak, Promise::SagaEnds],
    ),
    (
        |h| {
            h.topic_read.iter_mut().for_each(|topic_read| topic_read.ordered = false);
            h.consumers.iter_mut().for_each(|consumer| consumer.ordered = false);
        },
        &[Promise::CausalOrder],
    ),
];

#[test]
fn what_needs_a_part_that_is_absent_is_not_checked() {
    for (forget, expected) in FORGOTTEN {
        let mut history = good();
        forget(&mut history);
        // Without the list of removed rows, an absent row counts as a row that never existed.
        if history.outbox.is_none() {
            history.removed = None;
        }
        let verdict = Verdict::of(&history);
        let unchecked: Vec<_> = verdict.unchecked().map(|ruling| ruling.promise).collect();
        let mut expected = expected.to_vec();
        if history.removed.is_none() {
            expected.push(Promise::Retention);
        }
        expected.sort_unstable();
        assert_eq!(unchecked, expected, "{verdict}");
        assert!(verdict.holds(), "{verdict}");
        assert!(verdict.unchecked().all(|ruling| !ruling.holds()));
    }
}

#[test]
fn of_an_empty_history_nothing_is_claimed() {
    let verdict = Verdict::of(&History::default());
    let claimed: Vec<_> = verdict.rulings.iter().filter(|ruling| ruling.holds()).collect();
    // There are no copies, and therefore no differences.
    assert_eq!(claimed.iter().map(|ruling| ruling.promise).collect::<Vec<_>>(), [Promise::Unaltered]);
    assert_eq!(claimed[0].checked, 0);
}
