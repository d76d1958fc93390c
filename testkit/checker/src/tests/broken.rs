//! Histories with a single defect, and the violation that must be reported for it.

use uuid::Uuid;

use super::sample::*;
use super::{broken, violations};
use crate::{
    Breach, BusinessRow, Content, DeadLetter, Enqueued, Event, History, InboxRow, Leak, LeakKind, Limits,
    Operation, OutboxRow, Outcome, Parked, ParkedEntry, Promise, SagaState, Sagas, Verdict, Violation as V,
};

fn outbox_of(history: &mut History) -> &mut Vec<OutboxRow> {
    history.outbox.as_mut().unwrap()
}

fn operations_of(history: &mut History) -> &mut Vec<Operation> {
    history.operations.as_mut().unwrap()
}

fn business_of(history: &mut History) -> &mut Vec<BusinessRow> {
    history.business.as_mut().unwrap()
}

fn topic_read_of(history: &mut History) -> &mut Vec<crate::Occurrence> {
    &mut history.topic_read.as_mut().unwrap().occurrences
}

fn sagas_of(history: &mut History) -> &mut Sagas {
    history.sagas.as_mut().unwrap()
}

/// Removes one message from every place downstream of the outbox, so that only its row is left.
fn never_left(history: &mut History, number: u64) {
    topic_read_of(history).retain(|seen| seen.id != Some(id(number)));
    for consumer in &mut history.consumers {
        consumer.inbox.as_mut().unwrap().retain(|row| row.id != id(number));
        consumer.effects.as_mut().unwrap().retain(|effect| effect.id != id(number));
        consumer.dead_letters.as_mut().unwrap().retain(|letter| letter.id != Some(id(number)));
    }
}

#[test]
fn a_good_history_passes_and_everything_was_checked() {
    let verdict = Verdict::of(&good());
    assert!(verdict.holds(), "{verdict}");
    assert_eq!(verdict.unchecked().count(), 0, "{verdict}");
    for ruling in &verdict.rulings {
        let expected = !matches!(ruling.promise, Promise::NoLeak | Promise::Containment);
        assert_eq!(ruling.checked > 0, expected, "{:?}", ruling.promise);
    }
}

type Break = fn(&mut History);

/// The violations, each with a change that causes only this violation.
const SEPARATE: [(V, Break); 42] = [
    (V::CommittedInPart, |h| business_of(h).retain(|row| row.id != row_name(6))),
    (V::UndoneAndPresent, |h| business_of(h).push(BusinessRow { messages: None, ..business(10) })),
    (V::WithoutBusinessRow, |h| {
        operations_of(h)[0].outcome = Outcome::Unknown;
        operations_of(h)[0].messages.clear();
        business_of(h).retain(|row| row.id != row_name(1));
    }),
    (V::WithoutMessage, |h| {
        h.removed = None;
        h.operations = None;
        never_left(h, 9);
    }),
    (V::TooManyMessages, |h| business_of(h)[1].messages = Some(0)),
    (V::SaysSomethingElse, |h| business_of(h)[0].payload = Some(crate::Digest::of(b"other"))),
    (V::EnqueuedTwice, |h| {
        let copy = OutboxRow { position: 20, row: None, ..outbox(1) };
        outbox_of(h).push(copy);
    }),
    (V::DoneAndAbsent, |h| operations_of(h).push(operation(11, Outcome::Ok))),
    (V::FailedAndPresent, |h| operations_of(h)[2].outcome = Outcome::Failed),
    (V::PublishedWithoutId, |h| topic_read_of(h)[3] = crate::Occurrence { id: None, ..occurrence(1) }),
    (V::PublishedUncommitted, |h| topic_read_of(h).push(occurrence(99))),
    (V::DeadLetterUncommitted, |h| {
        let letters = h.consumers[0].dead_letters.as_mut().unwrap();
        letters.push(DeadLetter { id: Some(id(99)), ..DeadLetter::default() });
    }),
    (V::RememberedUncommitted, |h| {
        h.consumers[0].inbox.as_mut().unwrap().push(inbox(99));
        h.consumers[0].effects = None;
    }),
    (V::AppliedUncommitted, |h| {
        h.consumers[0].effects.as_mut().unwrap().push(effect(99));
        h.consumers[0].inbox = None;
    }),
    (V::EnqueuedByNobody, |h| {
        outbox_of(h).push(OutboxRow { row: None, ..outbox(98) });
        h.parked.as_mut().unwrap().push(Parked { id: id(98), state: ParkedEntry::Dead });
    }),
    (V::EnqueuedByRolledBack, |h| {
        outbox_of(h).push(OutboxRow { id: id(97), row: Some(row_name(7)), ..outbox(97) });
        h.parked.as_mut().unwrap().push(Parked { id: id(97), state: ParkedEntry::Dead });
    }),
    (V::SettledUnpublished, |h| {
        h.quiet = false;
        never_left(h, 2);
        outbox_of(h)[1].passed = Some(false);
    }),
    (V::PassedUnpublished, |h| {
        h.quiet = false;
        never_left(h, 2);
        outbox_of(h)[1].settled = Some(false);
    }),
    (V::ParkedAhead, |h| outbox_of(h)[4].passed = Some(false)),
    (V::Altered, |h| topic_read_of(h)[1].content.payload = Some(crate::Digest::of(b"other"))),
    (V::CameLate, |h| topic_read_of(h).swap(0, 2)),
    (V::AppliedLate, |h| h.consumers[1].effects.as_mut().unwrap().swap(0, 2)),
    (V::AppliedAgain, |h| h.consumers[0].effects.as_mut().unwrap().push(effect(2))),
    (V::NeverApplied, |h| {
        h.consumers[0].inbox.as_mut().unwrap().pop();
        h.consumers[0].effects.as_mut().unwrap().pop();
    }),
    (V::RememberedUnapplied, |h| {
        h.quiet = false;
        h.consumers[0].effects.as_mut().unwrap().pop();
    }),
    (V::AppliedUnremembered, |h| h.consumers[0].inbox.as_mut().unwrap().truncate(5)),
    (V::StaleWrite, |h| h.leases.as_mut().unwrap().push(wrote(1, true))),
    (V::EpochReused, |h| h.leases.as_mut().unwrap().push(granted(2))),
    (V::HeldWithoutCause, |h| {
        h.parked.as_mut().unwrap().push(Parked { id: id(2), state: ParkedEntry::Held });
    }),
    (V::RemovedUnpublished, |h| {
        never_left(h, 9);
        h.consumers.clear();
    }),
    (V::RemovedWhileParked, |h| {
        h.parked.as_mut().unwrap().push(Parked { id: id(9), state: ParkedEntry::Dead });
    }),
    (V::Leaked, |h| {
        h.leaks.as_mut().unwrap().push(Leak { kind: LeakKind::Transaction, what: "pid 7".into() });
    }),
    (V::OrderedNotStarted, |h| sagas_of(h).orders.push("third".into())),
    (V::StartedByNobody, |h| sagas_of(h).orders.truncate(1)),
    (V::StepAgain, |h| {
        sagas_of(h).effects.push(did("first", "reserve", false, 1));
        sagas_of(h).balances[0].taken = 2;
    }),
    (V::UndoneAgain, |h| {
        sagas_of(h).effects.push(did("second", "reserve", true, 1));
        sagas_of(h).balances[0].taken = 0;
    }),
    (V::UndoneBefore, |h| {
        sagas_of(h).effects.push(did("second", "charge", true, 500));
        sagas_of(h).balances[1].taken = 0;
    }),
    (V::NeverEnded, |h| sagas_of(h).runs[1].state = SagaState::Open),
    (V::FinishedInPart, |h| {
        sagas_of(h).effects.remove(2);
        sagas_of(h).balances[1].taken = 0;
    }),
    (V::UndoneInPart, |h| {
        sagas_of(h).effects.pop();
        sagas_of(h).balances[0].taken = 2;
    }),
    (V::DoesNotAddUp, |h| sagas_of(h).balances[1].taken = 499),
    (V::NeverPublished, |h| {
        never_left(h, 2);
        outbox_of(h)[1].settled = Some(false);
        outbox_of(h)[1].passed = Some(false);
        h.consumers.clear();
    }),
];

#[test]
fn each_break_is_named_and_nothing_else_is() {
    let mut unexpected = Vec::new();
    for (expected, break_it) in SEPARATE {
        let mut history = good();
        break_it(&mut history);
        if violations(&history) != [expected] || broken(&history) != [expected.promise()] {
            unexpected.push((expected, violations(&history)));
        }
    }
    assert_eq!(unexpected, [], "expected, found");
}

#[test]
fn a_lost_message_is_also_an_effect_that_is_missing() {
    let mut history = good();
    never_left(&mut history, 2);
    let expected = [V::NeverPublished, V::SettledUnpublished, V::PassedUnpublished, V::NeverApplied];
    assert_eq!(violations(&history), expected);
}

#[test]
fn a_saga_that_breaks_a_promise_is_shown_with_all_that_was_done_for_it() {
    let mut history = good();
    sagas_of(&mut history).effects.push(did("second", "reserve", false, 1));
    let verdict = Verdict::of(&history);
    let again = verdict.ruling(Promise::SagaSteps);
    // The four events are a reservation, its undo, a second reservation, and the state.
    assert_eq!((again.breached, again.breaches[0].events.len()), (1, 4), "{verdict}");
    // The undone saga has a step left, and the stock does not add up.
    assert_eq!(broken(&history), [Promise::SagaSteps, Promise::SagaEnds, Promise::SagaMoney]);
    // An undo that gives back an amount different from the amount taken is wrong, even if the
    // balances agree.
    let mut history = good();
    sagas_of(&mut history).effects[3].amount = 2;
    sagas_of(&mut history).balances[0].taken = 0;
    assert_eq!(violations(&history), [V::DoesNotAddUp]);
    // An effect for an unknown saga is also wrong.
    let mut history = good();
    sagas_of(&mut history).effects.push(did("nobody", "charge", false, 0));
    assert_eq!(violations(&history), [V::DoesNotAddUp]);
}

#[test]
fn a_breach_carries_all_that_was_seen_of_it_in_order() {
    let mut history = good();
    topic_read_of(&mut history).swap(0, 2);
    let verdict = Verdict::of(&history);
    let Breach { subject, events, .. } = &verdict.ruling(Promise::CausalOrder).breaches[0];
    assert_eq!((subject.ids.as_slice(), subject.key.as_deref()), ([id(1), id(3)].as_slice(), Some("odd")));
    let places = events.iter().filter_map(|event| match event {
        Event::Published { id, nth, .. } => Some((id.unwrap(), *nth)),
        _ => None,
    });
    assert_eq!(places.collect::<Vec<_>>(), [(id(3), 0), (id(1), 2), (id(1), 3), (id(3), 5)]);
    assert!(matches!(&events[0], Event::Operation { operation, .. } if &**operation == "op-1"), "{verdict}");
    assert!(events.iter().all(|event| !event.to_string().contains(&id(2).to_string())), "{verdict}");
}

#[test]
fn what_waits_for_its_topic_is_held_with_a_cause() {
    let mut history = good();
    for (number, topic) in [(2, "gone"), (3, "gone"), (5, "other")] {
        never_left(&mut history, number);
        outbox_of(&mut history)[number as usize - 1].topic = Some(topic.into());
        outbox_of(&mut history)[number as usize - 1].settled = Some(false);
    }
    history.consumers.clear();
    let parked = history.parked.as_mut().unwrap();
    parked.retain(|parked| parked.state != ParkedEntry::Held && parked.state != ParkedEntry::Dead);
    let state = [(2, ParkedEntry::Retrying), (3, ParkedEntry::Held), (5, ParkedEntry::Held)];
    parked.extend(state.map(|(number, state)| Parked { id: id(number), state }));
    let held: Vec<_> = Verdict::of(&history).ruling(Promise::Containment).breaches.clone();
    // Message 5 has the key of message 3. Message 3 is itself held and therefore not a cause.
    assert_eq!(held.iter().map(|breach| breach.subject.ids[0]).collect::<Vec<_>>(), [id(5)]);
}

#[test]
fn time_alone_orders_messages_of_different_transactions() {
    let without_numbers = |history: &mut History| {
        let operations = history.operations.iter_mut().flatten();
        operations.flat_map(|operation| &mut operation.messages).for_each(|message| message.seq = None);
        topic_read_of(history).swap(0, 2);
        history.consumers.clear();
    };
    let mut history = good();
    without_numbers(&mut history);
    assert_eq!(violations(&history), [V::CameLate]);
    // Transactions that overlap have no order.
    let mut history = good();
    without_numbers(&mut history);
    operations_of(&mut history)[2].started = Some(12);
    assert_eq!(violations(&history), []);
    // A transaction whose commit time is unknown has no order either.
    let mut history = good();
    without_numbers(&mut history);
    operations_of(&mut history)[0].outcome = Outcome::Unknown;
    assert_eq!(violations(&history), []);
}

#[test]
fn scheduled_messages_and_messages_of_other_places_need_not_keep_the_order() {
    let mut history = good();
    operations_of(&mut history)[0].messages[0].out_of_turn = true;
    history.consumers.clear();
    topic_read_of(&mut history).swap(0, 2);
    assert_eq!(violations(&history), []);
    let mut history = good();
    history.consumers.clear();
    topic_read_of(&mut history).swap(0, 2);
    topic_read_of(&mut history)[0].place = "events/1".into();
    topic_read_of(&mut history)[5].place = "events/1".into();
    assert_eq!(violations(&history), []);
}

#[test]
fn an_id_that_several_operations_wrote_belongs_to_whoever_did_not_fail() {
    // The failed operation wrote the same derived id earlier, so its answer was still true.
    let mut history = good();
    let again = Operation { id: "again".into(), rows: Vec::new(), ..operation(1, Outcome::Failed) };
    operations_of(&mut history).insert(0, again.clone());
    assert_eq!(violations(&history), []);
    // Of two operations with an unknown outcome, one wrote the row.
    let rows = vec![row_name(50)];
    operations_of(&mut history)[0] = Operation { outcome: Outcome::Unknown, rows, ..again };
    operations_of(&mut history)[1].outcome = Outcome::Unknown;
    assert_eq!(violations(&history), []);
    // A message that is undone in one transaction and kept in another may exist.
    operations_of(&mut history)[2].undone_messages.push(id(3));
    assert_eq!(violations(&history), []);
}

#[test]
fn a_message_without_a_row_of_its_own_is_judged_by_its_transaction() {
    let mut history = good();
    let enqueued = |number| Enqueued { id: id(number), ..Enqueued::default() };
    let two = Operation { id: "two".into(), outcome: Outcome::Unknown, ..Operation::default() };
    operations_of(&mut history).push(Operation { messages: vec![enqueued(1), enqueued(60)], ..two.clone() });
    // The first id also belongs to another operation, so only the second id counts.
    assert_eq!(violations(&history), []);
    operations_of(&mut history).push(Operation { messages: vec![enqueued(61), enqueued(62)], ..two });
    outbox_of(&mut history).push(OutboxRow { row: None, ..outbox(61) });
    history.parked.as_mut().unwrap().push(Parked { id: id(61), state: ParkedEntry::Dead });
    assert_eq!(violations(&history), [V::CommittedInPart]);
}

#[test]
fn consumers_and_scopes_are_apart() {
    let mut history = good();
    history.consumers[0]
        .effects
        .as_mut()
        .unwrap()
        .push(crate::Effect { scope: "tenant".into(), ..effect(2) });
    history.consumers[0].inbox.as_mut().unwrap().push(InboxRow { scope: "tenant".into(), ..inbox(2) });
    assert_eq!(violations(&history), []);
    history.consumers[0].inbox.as_mut().unwrap().last_mut().unwrap().scope = "other".into();
    assert_eq!(violations(&history), [V::RememberedUnapplied, V::AppliedUnremembered]);
}

#[test]
fn a_consumer_owes_effects_of_its_own_topics_only() {
    let mut history = good();
    outbox_of(&mut history).iter_mut().for_each(|row| row.topic = Some("orders".into()));
    history.consumers[0].topics = Some(vec!["invoices".into()]);
    history.consumers[0].effects = Some(Vec::new());
    history.consumers[0].inbox = Some(Vec::new());
    assert_eq!(violations(&history), []);
    history.consumers[0].topics = Some(vec!["invoices".into(), "orders".into()]);
    assert_eq!(violations(&history), [V::NeverApplied]);
}

#[test]
fn a_key_or_header_that_differs_anywhere_is_named() {
    let part = |change: fn(&mut Content)| {
        let mut history = good();
        change(&mut history.consumers[1].effects.as_mut().unwrap()[0].content);
        Verdict::of(&history).ruling(Promise::Unaltered).breaches[0].subject.part
    };
    assert_eq!(part(|content| content.key = Some("".into())), Some("key"));
    assert_eq!(part(|content| content.payload = Some(crate::Digest::of(b""))), Some("payload"));
    assert_eq!(part(|content| content.headers = Some(crate::Digest::of(b""))), Some("headers"));
    // The client's content is compared with the stored one, and a difference is reported once for
    // all copies.
    let mut history = good();
    operations_of(&mut history)[0].messages[0].content.payload = Some(crate::Digest::of(b"other"));
    assert_eq!(Verdict::of(&history).ruling(Promise::Unaltered).breached, 1);
}

#[test]
fn everything_is_counted_and_the_first_are_kept() {
    let mut history = good();
    let foreign = (1000..2000).map(occurrence);
    topic_read_of(&mut history).extend(foreign);
    let verdict = Verdict::with_limits(&history, Limits { breaches_max: 3, events_max: 1 });
    let ruling = verdict.ruling(Promise::NoPhantom);
    assert_eq!((ruling.breached, ruling.breaches.len(), ruling.breaches[0].events.len()), (1000, 3, 1));
    let ids: Vec<Uuid> = ruling.breaches.iter().map(|breach| breach.subject.ids[0]).collect();
    assert_eq!(ids, [id(1000), id(1001), id(1002)]);
}

#[test]
fn a_verdict_is_read_by_people_and_by_programs() {
    let mut history = good();
    history.consumers[0].effects.as_mut().unwrap().push(effect(2));
    history.leaks = None;
    let verdict = Verdict::of(&history);
    let text = verdict.to_string();
    assert!(text.contains("✗ no message takes effect twice"), "{text}");
    assert!(text.contains(&format!("✗ message {}: took effect again (consumer \"first\")", id(2))), "{text}");
    assert!(text.contains("not checked: resources that are still held were not recorded"), "{text}");
    let json = serde_json::to_value(&verdict).unwrap();
    let again = &json["rulings"][Promise::AtMostOnce as usize];
    assert_eq!(again["promise"], "at_most_once");
    assert_eq!(again["breaches"][0]["violation"], "applied_again");
    assert_eq!(again["breaches"][0]["events"][0]["seen"], "operation");
}

#[test]
fn a_history_is_written_and_read_back() {
    let history = good();
    let text = serde_json::to_string(&history).unwrap();
    assert_eq!(serde_json::from_str::<History>(&text).unwrap(), history);
    let refused = serde_json::from_str::<History>(r#"{"outbocks": []}"#).unwrap_err().to_string();
    assert!(refused.contains("outbocks"), "{refused}");
}
