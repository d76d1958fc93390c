//! Single steps of the machine: silence, blocked topics, retries, entries that are read back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use message::{EventType, MaxInFlightPerKey, Message, OrderingKey, PublishError, Receipt, Submission, Topic};
use outbox_log::{
    Cursor, Difference, DueKind, Entry, EntryId, Exception, ExceptionChange, ExceptionState, HeldPage,
    HeldQueue, HeldQueues, InvalidEntry, Mark, Page, QueueName,
};

use super::bench::{Bench, exception, message_for};
use super::world::{Log, settings};
use super::*;
use crate::filter::{Filter, Rule};
use crate::held::QueueHash;

#[test]
fn a_silent_topic_leaves_the_window_and_its_late_receipts_settle_it_without_copies() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let (first, second, other) = (message_for("t", "a"), message_for("t", "b"), message_for("u", "c"));
    bench.read(&first);
    bench.read(&second);
    let silent: Vec<_> = bench.machine.submissions(9).iter().map(|s| s.ticket).collect();
    bench.at(290);
    bench.read(&other);
    let others = bench.machine.submissions(9);
    bench.confirm(others[0].ticket);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.in_flight_len(), 2, "not silent for long enough");
    bench.at(300);
    bench.machine.look_for_silence(0.5);
    assert_eq!((bench.machine.in_flight_len(), bench.machine.load().unanswered), (0, 2));
    assert_eq!(bench.machine.load().blocked_topics, 1, "its topic waits");
    assert_eq!(bench.cursor(), Cursor::at(Mark::new("3")), "the cursor passes");
    bench.machine.due(vec![exception(1, &first, ExceptionState::Retrying)], 0.5);
    bench.read_back(&[exception(2, &second, ExceptionState::Held)]);
    assert!(bench.machine.submissions(9).is_empty(), "no copies: both are with the publisher");
    bench.confirm(silent[0]);
    bench.confirm(silent[1]);
    bench.read_back(&[]);
    let load = bench.machine.load();
    assert_eq!((load.blocked_keys, load.blocked_topics), (0, 0));
    let checkpoint = bench.machine.checkpoint().unwrap();
    assert!(checkpoint.changes.iter().all(|change| matches!(change, ExceptionChange::Resolve(_))));
    bench.read(&first);
    assert_eq!(bench.machine.submissions(9).len(), 1, "the topic flows again");
}

#[test]
fn an_error_of_any_length_is_cut() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    bench.read(&message_for("t", "a"));
    let ticket = bench.machine.submissions(9)[0].ticket;
    let error = PublishError::refused(format!("no\0{}", "\u{e4}".repeat(1 << 20)));
    bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
    let changes = bench.machine.checkpoint().unwrap().changes;
    let [ExceptionChange::Park(parked)] = &changes[..] else { panic!("{changes:?}") };
    let kept = parked.error.as_deref().unwrap();
    assert!(kept.starts_with("no\u{fffd}\u{e4}") && (4_000..=4_096).contains(&kept.len()), "{}", kept.len());
}

#[test]
fn a_message_that_no_attempt_can_help_is_dead_at_once() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    bench.read(&message_for("t", "a"));
    let ticket = bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::refused("nobody listens").without_retry());
    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    bench.read(&message_for("t", "a"));
    bench.read(&message_for("t", "b"));
    assert_eq!(bench.machine.submissions(9).len(), 1, "its key waits, its topic goes on");
    let changes = bench.machine.checkpoint().unwrap().changes;
    let is_dead = |change: &&ExceptionChange| matches!(change, ExceptionChange::Park(parked) if parked.state == ExceptionState::Dead && parked.attempts == 1);
    assert_eq!(changes.iter().filter(is_dead).count(), 1, "{changes:?}");
}

#[test]
fn what_the_filter_leaves_out_is_passed_and_told_and_never_published() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let rule = Rule { topics: vec![String::from("orders")], ..Rule::default() };
    bench.machine.settings.filter = Filter::any_of(vec![rule]).unwrap();
    let (own, foreign) = (message_for("orders", "a"), message_for("audit", "a"));
    bench.read(&foreign);
    assert!(bench.machine.submissions(9).is_empty());
    assert_eq!(bench.cursor(), Cursor::at(Mark::new("1")));
    bench.read(&own);
    bench.read(&foreign);
    let submitted = bench.machine.submissions(9);
    assert_eq!(submitted.len(), 1);
    assert_eq!(bench.cursor(), Cursor::at(Mark::new("1")), "its own message has not left");
    bench.confirm(submitted[0].ticket);
    assert_eq!(bench.cursor(), Cursor::at(Mark::new("3")));
    let left_out = bench.machine.take_events().into_iter().filter(|event| *event == Event::LeftOut(1));
    assert_eq!(left_out.count(), 2);
    // A poisoned message of another relay is not this one's problem.
    let broken = InvalidEntry {
        message_id: String::from("m"),
        topic: String::from("audit"),
        key: None,
        kind: None,
        problem: String::from("no message"),
    };
    let mark = |id: &str| Mark::new(id);
    let difference = Arc::new(Difference { base: mark("3"), head: mark("4"), ceiling: 4 });
    let entry = Entry { id: EntryId(4), message: Err(broken), deliver_in: None };
    bench.machine.page(&difference, Page { entries: vec![entry], exhausted: true });
    assert!(bench.machine.checkpoint().unwrap().changes.is_empty());
}

#[test]
fn a_silent_part_of_a_topic_holds_its_keys_and_no_others() {
    let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
    let (silent, alive) = (message_for("t", "silent"), message_for("t", "alive"));
    bench.read(&silent);
    bench.read(&silent);
    let tickets: Vec<_> = bench.machine.submissions(9).iter().map(|s| s.ticket).collect();
    bench.at(200);
    bench.read(&alive);
    let submitted = bench.machine.submissions(9);
    bench.at(300);
    bench.confirm(submitted[0].ticket);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.load().unanswered, 2);
    let load = bench.machine.load();
    assert_eq!((load.blocked_keys, load.blocked_topics), (1, 0), "one key waits, the topic does not");
    bench.read(&silent);
    bench.read(&alive);
    let next = bench.machine.submissions(9);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].message.key, alive.key);
    assert!(bench.machine.session_end().is_none());
    // The session ends: the unanswered messages are submitted again, in order.
    let lost = || Err(PublishError::session_lost("gone"));
    bench.machine.receipt(Receipt { ticket: tickets[0], outcome: lost() }, 0.5);
    bench.machine.receipt(Receipt { ticket: tickets[1], outcome: lost() }, 0.5);
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    assert!(bench.machine.checkpoint().is_some());
    bench.machine.checkpointed();
    bench.read_back(&[exception(2, &silent, ExceptionState::Held)]);
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    let again = bench.machine.submissions(9);
    assert_eq!(again.iter().filter(|s| s.message.key == silent.key).count(), 1, "the second one waits");
}

#[test]
fn an_outage_of_everything_parks_nothing() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    for topic in ["t", "u"] {
        bench.read(&message_for(topic, topic));
    }
    assert_eq!(bench.machine.submissions(9).len(), 2);
    bench.at(60_000);
    bench.machine.look_for_silence(0.5);
    assert_eq!((bench.machine.in_flight_len(), bench.machine.session_end()), (2, None));
}

#[test]
fn nothing_beside_the_log_is_read_while_too_many_changes_are_not_stored() {
    let settings = EngineOptions { unstored_max: 2, ..settings() };
    let machine = Machine::new(settings, Cursor::at(Mark::new("0")), Blocks::default());
    let mut bench = Bench { machine, last: 0 };
    bench.machine.session_started(MaxInFlightPerKey::One);
    let due = [1, 2].map(|id| exception(id, &message_for("t", &id.to_string()), ExceptionState::Scheduled));
    bench.machine.due(due.into(), 0.5);
    assert!(bench.machine.has_room_for_exceptions());
    for submission in bench.machine.submissions(9) {
        bench.confirm(submission.ticket);
    }
    assert_eq!((bench.machine.open_len(), bench.machine.unstored_len()), (0, 2));
    assert!(!bench.machine.has_room_for_exceptions() && !bench.machine.has_room());
    bench.cursor();
    assert!(bench.machine.has_room_for_exceptions() && bench.machine.has_room());
}

/// Goal: requeued entries of one key leave one after the other, each as soon as the one before it
/// has its receipt, and none is read for each of the others. Oracle: their states and order; the
/// same behind a dead entry, once that one is discarded.
#[test]
fn what_is_due_behind_another_one_of_its_key_is_held() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let message = message_for("t", "a");
    bench.read(&message);
    let ticket = bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::refused("nobody listens").without_retry());
    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    bench.cursor();
    bench.machine.due((2..=4).map(|id| exception(id, &message, ExceptionState::Retrying)).collect(), 0.5);
    assert_eq!(bench.machine.open_len(), 0, "all of them wait for the dead one");
    let changes = bench.machine.checkpoint().unwrap().changes;
    let parked = changes.iter().filter_map(|change| match change {
        ExceptionChange::Park(parked) => Some((parked.id.0, parked.state)),
        ExceptionChange::Resolve(_) => None,
    });
    let held = [2, 3, 4].map(|id| (id, ExceptionState::Held));
    assert_eq!(parked.collect::<Vec<_>>(), held);
    bench.machine.checkpointed();
    bench.machine.due(vec![exception(1, &message, ExceptionState::Discarded)], 0.5);
    bench.cursor();
    let held: Vec<_> = (2..=4).map(|id| exception(id, &message, ExceptionState::Held)).collect();
    assert_eq!(bench.read_back(&held), 3);
    for _ in 2..=4 {
        let [submission] = &bench.machine.submissions(9)[..] else { panic!("one at a time") };
        bench.confirm(submission.ticket);
    }
    bench.cursor();
    assert_eq!((bench.machine.open_len(), bench.machine.unstored_len()), (0, 0));
}

/// An entry that is held while a page of its queue is on the way can become the queue's first
/// entry, and precede the one that stops the page.
#[test]
fn what_became_the_first_of_a_queue_while_it_was_read_is_read_once_stored() {
    let mut blocks = Blocks::default();
    let (name, id) = (QueueName::of("t", Some("k")), EntryId);
    let queue = QueueHash::of_name(&name);
    blocks.block(Some("k"), id(3));
    blocks.hold("t", Some("k"), id(4));
    blocks.held.stored(&name, id(4));
    blocks.resolve(Some("k"), id(3));
    blocks.block(Some("k"), id(5));
    assert_eq!(blocks.asks(|_| false)[0].from, id(4));
    blocks.hold("t", Some("k"), id(2));
    assert!(!blocks.held.answered(queue, id(4)), "entry 2 stands before the place of the question");
    assert!(
        blocks.has_before(Some("k"), id(5)) && blocks.asks(|_| false).is_empty(),
        "entry 2 is not stored"
    );
    blocks.held.stored(&name, id(2));
    assert_eq!(blocks.asks(|_| false)[0].from, id(2));
}

/// While a message of a key is unanswered, no other entry of the key is submitted, whatever its id:
/// one could overtake the other.
#[test]
fn an_entry_before_a_silent_one_of_its_key_waits_for_its_answer() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let (silent, other) = (message_for("t", "a"), message_for("u", "b"));
    bench.last = 1;
    bench.read(&silent);
    let ticket = bench.machine.submissions(9)[0].ticket;
    bench.at(290);
    bench.read(&other);
    let others = bench.machine.submissions(9);
    bench.last = 0;
    bench.read(&message_for("v", "a"));
    bench.confirm(others[0].ticket);
    bench.at(300);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.load().unanswered, 1);
    assert!(bench.machine.submissions(9).is_empty(), "entry 1 waits for the answer about entry 2");
    bench.cursor();
    bench.confirm(ticket);
    bench.read_back(&[exception(1, &message_for("v", "a"), ExceptionState::Held)]);
    assert_eq!(bench.machine.submissions(9).len(), 1);
}

/// The probe of the topic was answered while so many others were unanswered that the topic stayed
/// blocked. No other entry would probe it.
#[test]
fn a_topic_that_stays_blocked_without_a_probe_is_free_with_the_next_session() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let half = settings().window_entries / 2;
    for number in 0..=half {
        bench.read(&message_for("t", &format!("k{number}")));
    }
    let silent = bench.machine.submissions(99);
    bench.only_others_are_answered();
    assert_eq!(bench.machine.load().unanswered, half + 1);
    bench.confirm(silent[0].ticket);
    assert_eq!(bench.machine.load().blocked_topics, 1, "too many submissions are still unanswered");
    bench.machine.session_started(MaxInFlightPerKey::One);
    assert_eq!(bench.machine.load().blocked_topics, 0);
}

/// Returns a bench in which topic `t` does not answer its first message while `u` does, with that
/// message and its ticket.
fn with_a_silent_topic() -> (Bench, Message, message::Ticket) {
    let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
    let silent = message_for("t", "a");
    bench.read(&silent);
    let ticket = bench.machine.submissions(9)[0].ticket;
    bench.only_others_are_answered();
    assert_eq!(bench.machine.load().blocked_topics, 1);
    bench.cursor();
    bench.machine.take_events();
    (bench, silent, ticket)
}

fn stored(bench: &mut Bench) -> Vec<(EntryId, Option<Duration>)> {
    let changes = bench.machine.checkpoint().map(|checkpoint| checkpoint.changes).unwrap_or_default();
    bench.machine.checkpointed();
    let parked = changes.into_iter().filter_map(|change| match change {
        ExceptionChange::Park(parked) => Some((parked.id, parked.due_in)),
        ExceptionChange::Resolve(_) => None,
    });
    parked.collect()
}

#[test]
fn a_probe_without_an_answer_lets_the_rest_of_its_topic_try() {
    let (mut bench, silent, _) = with_a_silent_topic();
    let alive = message_for("t", "alive");
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    let load = bench.machine.load();
    assert_eq!((load.blocked_keys, load.blocked_topics), (1, 0), "its key waits, its topic does not");
    bench.read(&alive);
    bench.read(&silent);
    let next = bench.machine.submissions(9);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].message.key, alive.key);
    // That one is also unanswered: it probes, and lets others try once it has waited long enough.
    bench.at(310);
    bench.read(&message_for("u", "c"));
    let others = bench.machine.submissions(9);
    bench.at(370);
    bench.confirm(others[0].ticket);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.load().blocked_topics, 1);
    bench.cursor();
    bench.machine.due(vec![exception(3, &alive, ExceptionState::Retrying)], 0.5);
    assert_eq!(bench.machine.load().blocked_topics, 1, "not for long enough");
    bench.cursor();
    bench.at(600);
    bench.machine.due(vec![exception(3, &alive, ExceptionState::Retrying)], 0.5);
    assert_eq!(bench.machine.load().blocked_topics, 0);
}

/// Goal: an operator may discard a message that the broker may still confirm: nothing of its key
/// overtakes it, and a late confirmation counts. Oracle: what is sent, and the event.
#[test]
fn a_discarded_message_whose_answer_is_missing_keeps_its_key_until_the_answer() {
    let (mut bench, silent, ticket) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Discarded)], 0.5);
    assert_eq!(bench.machine.load().blocked_topics, 0, "its topic is tried by the next message");
    bench.read(&silent);
    bench.read(&message_for("t", "other"));
    let sent = bench.machine.submissions(9);
    assert_eq!(sent.len(), 1, "its key waits");
    bench.confirm(sent[0].ticket);
    bench.cursor();
    bench.machine.take_events();
    bench.confirm(ticket);
    let events = bench.machine.take_events();
    let is_published =
        |event: &Event| matches!(event, Event::Published { message, .. } if message.id == silent.id);
    assert!(events.iter().any(is_published), "{events:?}");
    let last = bench.last - 1;
    bench.read_back(&[exception(last, &silent, ExceptionState::Held)]);
    assert_eq!(bench.machine.submissions(9).len(), 1, "its key continues");
}

#[test]
fn an_entry_that_is_waited_for_is_put_off_for_long_and_without_a_word() {
    let (mut bench, silent, ticket) = with_a_silent_topic();
    let delay_max = Duration::from_secs(60);
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    let told = bench.machine.take_events();
    assert!(told.iter().all(|event| !matches!(event, Event::Parked(_))));
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(delay_max))]);
    let lost = PublishError::session_lost("gone");
    bench.machine.receipt(Receipt { ticket, outcome: Err(lost) }, 0.5);
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(Duration::ZERO))], "its receipt makes it due");
}

#[test]
fn what_is_waited_for_is_put_off_no_longer_than_a_crash_may_cost() {
    let day = Duration::from_secs(86_400);
    let with = |outage: u64| settings().retry_max(day).outage_delay_max(Duration::from_secs(outage));
    assert_eq!(with(15).postponed_max(), Duration::from_secs(60));
    assert_eq!(with(86_400).postponed_max(), day, "never longer than the largest retry delay");
}

#[test]
fn the_end_of_a_session_makes_due_what_was_put_off_and_a_late_receipt_settles_it() {
    let (mut bench, silent, _) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(Duration::ZERO))]);
    let (mut bench, silent, late) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.confirm(late);
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    assert!(stored(&mut bench).is_empty(), "it is published");
    // An operator discards one meanwhile: nothing brings it back.
    let (mut bench, silent, _) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Discarded)], 0.5);
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    assert!(stored(&mut bench).is_empty());
}

/// Goal: a message that an operator discards between two retries is never published, even if the
/// session ends before the machine has read the decision: the change that makes the message due is
/// stored after it. Oracle: the database, and what is submitted.
#[test]
fn the_end_of_a_session_brings_no_discarded_message_back() {
    let (mut bench, silent, _) = with_a_silent_topic();
    let cursor = bench.machine.stored.clone();
    let entries = vec![silent.clone()];
    let mut log = Log { entries, delays: HashMap::new(), cursor, rows: BTreeMap::new() };
    let store = |bench: &mut Bench, log: &mut Log, now| {
        log.store(bench.machine.checkpoint().unwrap(), now);
        bench.machine.checkpointed();
    };
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    store(&mut bench, &mut log, 300);
    assert!(log.discard(EntryId(1), 400), "it is put off");
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    store(&mut bench, &mut log, 500);
    bench.machine.asks();
    bench.machine.due(log.due(DueKind::Scheduled, 500, None, 9).exceptions, 0.5);
    let sent = bench.machine.submissions(9);
    assert!(sent.is_empty(), "{sent:?}");
    store(&mut bench, &mut log, 600);
    assert!(log.rows.is_empty(), "the machine has learned of the decision");
    bench.publish("t", "a");
}

#[test]
fn one_by_one_a_silent_topic_lets_other_topics_try_after_a_while() {
    let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
    for (topic, key) in [("t", "a"), ("t", "b"), ("u", "a"), ("u", "c"), ("v", "d")] {
        bench.read(&message_for(topic, key));
    }
    for _ in 0..3 {
        let ticket = bench.machine.submissions(9)[0].ticket;
        let lost = PublishError::session_lost("gone");
        bench.machine.receipt(Receipt { ticket, outcome: Err(lost) }, 0.5);
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    }
    assert_eq!(bench.machine.submissions(9).len(), 1, "one by one");
    bench.at(299);
    assert!(bench.machine.submissions(9).is_empty());
    bench.at(300);
    let next = bench.machine.submissions(9);
    assert_eq!(next.len(), 1);
    let key = next[0].message.key.as_ref().map(OrderingKey::as_str);
    assert_eq!((next[0].message.topic.as_str(), key), ("u", Some("c")), "no key passes the silent one");
    assert!(bench.machine.submissions(9).is_empty(), "one more at a time");
    bench.confirm(next[0].ticket);
    assert_eq!(bench.machine.submissions(9).len(), 3, "the broker answers: no more care");
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.load().unanswered, 2, "it is known which topic is silent");
}

/// Each retry of the missing topic ends its session, and is due again before the next session is
/// open.
#[test]
fn retries_of_a_missing_topic_do_not_keep_other_topics_from_leaving() {
    let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
    let (missing, also_missing) = (message_for("missing", "a"), message_for("missing", "b"));
    bench.read(&missing);
    bench.read(&also_missing);
    // A pipelined publisher rejects everything behind a failure.
    let refuse = |bench: &mut Bench| {
        let mut error = PublishError::topic_unavailable("no such topic");
        let batch = bench.machine.submissions(9);
        let topics: Vec<String> = batch.iter().map(|one| one.message.topic.to_string()).collect();
        for Submission { ticket, .. } in batch {
            bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
            error = PublishError::session_lost("an earlier message failed");
        }
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        bench.cursor();
        topics
    };
    assert_eq!(refuse(&mut bench).len(), 2);
    for _ in 0..9 {
        bench.machine.due(vec![exception(1, &missing, ExceptionState::Retrying)], 0.5);
        assert_eq!(refuse(&mut bench), ["missing"]);
    }
    bench.machine.due(vec![exception(1, &missing, ExceptionState::Retrying)], 0.5);
    for key in ["c", "d"] {
        bench.read(&message_for("orders", key));
    }
    bench.machine.session_started(MaxInFlightPerKey::Pipelined);
    let mut topics = || {
        let batch = bench.machine.submissions(9);
        batch.iter().map(|one| one.message.topic.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(topics(), ["orders", "orders"], "nobody waits for the retry, and none goes alone");
    assert_eq!(topics(), ["missing"], "the retry follows at once, and takes no other message with it");
}

#[test]
fn a_topic_that_is_missing_is_retried_by_one_of_its_messages() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let (first, second) = (message_for("missing", "a"), message_for("missing", "b"));
    let refuse = |bench: &mut Bench| {
        let batch = bench.machine.submissions(9);
        for Submission { ticket, .. } in &batch {
            let error = PublishError::topic_unavailable("no such topic");
            bench.machine.receipt(Receipt { ticket: *ticket, outcome: Err(error) }, 0.5);
        }
        bench.cursor();
        batch.len()
    };
    // The previous leader left two messages that were both retried.
    let due =
        [exception(1, &first, ExceptionState::Retrying), exception(2, &second, ExceptionState::Retrying)];
    bench.machine.due(due.to_vec(), 0.5);
    assert_eq!(refuse(&mut bench), 2);
    bench.machine.due(due[..1].to_vec(), 0.5);
    assert_eq!(refuse(&mut bench), 1, "this one is retried");
    bench.machine.due(due[1..].to_vec(), 0.5);
    assert_eq!(refuse(&mut bench), 0, "an operator made this one due: it is held for its topic");
    bench.machine.due(due[..1].to_vec(), 0.5);
    let ticket = bench.machine.submissions(9)[0].ticket;
    bench.confirm(ticket);
    bench.cursor();
    assert_eq!(bench.machine.load().blocked_topics, 0);
    let name = QueueName::of("missing", Some("b"));
    let queue = HeldQueue { name, first: EntryId(2), topic: "missing".into() };
    bench.machine.names(HeldQueues { queues: vec![queue], exhausted: true });
    bench.read_back(&[exception(2, &second, ExceptionState::Held)]);
    assert_eq!(bench.machine.submissions(9).len(), 1, "the topic is there, and it leaves");
}

/// Two entries of one key; the second one commits first.
#[test]
fn a_late_entry_before_the_probe_of_a_blocked_topic_does_not_stop_the_topic() {
    let message = || {
        Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "x")
            .with_key(OrderingKey::new("k").unwrap())
    };
    let difference = |base: &str, head: &str, ceiling| {
        Arc::new(Difference { base: Mark::new(base), head: Mark::new(head), ceiling })
    };
    let page = |id, message: &Message| {
        let entry = Entry { id: EntryId(id), message: Ok(message.clone()), deliver_in: None };
        Page { entries: vec![entry], exhausted: true }
    };
    let exception = |id, message: &Message, state| Exception {
        entry: Entry { id: EntryId(id), message: Ok(message.clone()), deliver_in: None },
        state,
        attempts: 0,
    };
    let (late, early) = (message(), message());
    let mut machine = Machine::new(settings(), Cursor::at(Mark::new("0")), Blocks::default());
    machine.session_started(MaxInFlightPerKey::One);
    machine.page(&difference("0", "1", 2), page(2, &early));
    let ticket = machine.submissions(9)[0].ticket;
    machine.receipt(Receipt { ticket, outcome: Err(PublishError::topic_busy("queue full")) }, 0.5);
    machine.page(&difference("1", "2", 1), page(1, &late));
    assert!(machine.checkpoint().is_some());
    machine.checkpointed();
    // The entry that probes the topic is due, and waits for the late one, which is held for the
    // topic.
    machine.due(vec![exception(2, &early, ExceptionState::Retrying)], 0.5);
    assert!(machine.checkpoint().is_some());
    machine.checkpointed();
    let name = QueueName::of("orders", Some("k"));
    let queue = HeldQueue { name, first: EntryId(1), topic: "orders".into() };
    machine.names(HeldQueues { queues: vec![queue], exhausted: true });
    let asks = machine.held_asks();
    assert_eq!(asks.iter().map(|ask| ask.from).collect::<Vec<_>>(), [EntryId(1)], "the late entry can leave");
    let exceptions = [(1, &late), (2, &early)].map(|(id, it)| exception(id, it, ExceptionState::Held)).into();
    machine.held(&asks, vec![HeldPage { exceptions, exhausted: true }]);
    let [first] = &machine.submissions(9)[..] else { panic!("one of the key") };
    machine.receipt(Receipt { ticket: first.ticket, outcome: Ok(()) }, 0.5);
    assert_eq!(machine.submissions(9).len(), 1, "and then the one that waited for it");
}

#[test]
fn what_is_read_back_takes_a_quarter_of_the_window_and_leaves_the_rest_to_other_keys() {
    let queue = HeldQueue { name: QueueName::of("t", Some("a")), first: EntryId(1), topic: "t".into() };
    let mut blocks = Blocks::default();
    blocks.load_queue(&queue);
    let mut machine = Machine::new(settings(), Cursor::at(Mark::new("0")), blocks);
    machine.session_started(MaxInFlightPerKey::Pipelined);
    machine.names(HeldQueues { queues: vec![queue], exhausted: true });
    let (held, window) = (message_for("t", "a"), settings().window_entries);
    for _ in 0..window {
        if machine.has_room_for_held() {
            let asks = machine.held_asks();
            let from = asks.first().map_or(0, |ask| ask.from.0);
            let exceptions = (from..from + 2).map(|id| exception(id, &held, ExceptionState::Held)).collect();
            machine.held(&asks, vec![HeldPage { exceptions, exhausted: false }]);
        }
    }
    assert_eq!(machine.readmitted_len(), window / 4);
    assert!(machine.has_room(), "entries of the log come in beside them");
}

/// Goal: however many entries are due, because a destination fails on all of its messages or is
/// slow, most of the window is left to the log. Oracle: the entries taken in, and the room.
#[test]
fn what_is_due_takes_a_quarter_of_the_window_and_leaves_the_rest_to_the_log() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let window = settings().window_entries;
    for id in 1..=2 * window as i64 {
        if bench.machine.has_room_for_due(DueKind::Retrying) {
            let message = message_for("failing", &id.to_string());
            bench.machine.due(vec![exception(id, &message, ExceptionState::Retrying)], 0.5);
        }
    }
    assert_eq!(bench.machine.readmitted_len(), window / 4);
    assert!(bench.machine.has_room_for_held(), "held entries have a share of their own");
    for id in 500..500 + window as i64 {
        if bench.machine.has_room_for_due(DueKind::Scheduled) {
            let scheduled = message_for("t", &format!("scheduled {id}"));
            bench.machine.due(vec![exception(id, &scheduled, ExceptionState::Scheduled)], 0.5);
        }
    }
    assert_eq!(bench.machine.readmitted_len(), window / 2, "and so has what is scheduled");
    bench.last = 1_000;
    // With each entry a difference ends, which also takes a place.
    for number in 0..window / 4 {
        assert!(bench.machine.has_room(), "{number} entries of the log");
        bench.read(&message_for("t", &number.to_string()));
    }
    let tickets: Vec<_> = bench.machine.submissions(99).into_iter().map(|one| one.ticket).collect();
    tickets.into_iter().for_each(|ticket| bench.confirm(ticket));
    while bench.machine.unstored_len() > 0 {
        bench.cursor();
    }
    assert!(bench.machine.has_room_for_due(DueKind::Retrying), "what left the window makes room");
}

/// Goal: the log goes on although three slow backlogs have their shares of the window. Oracle: the
/// room for each.
#[test]
fn full_shares_of_all_others_leave_room_to_the_log() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let due =
        [(DueKind::Retrying, ExceptionState::Retrying), (DueKind::Scheduled, ExceptionState::Scheduled)];
    let mut id = 0;
    for (kind, state) in due {
        while bench.machine.has_room_for_due(kind) {
            id += 1;
            bench.machine.due(vec![exception(id, &message_for("t", &id.to_string()), state)], 0.5);
        }
    }
    let queue = QueueName::of("t", Some("held"));
    bench.machine.blocks.held.load(QueueHash::of_name(&queue), EntryId(100));
    bench.machine.blocks.held.release(queue);
    let asks = bench.machine.held_asks();
    let held = |id| exception(id, &message_for("t", "held"), ExceptionState::Held);
    let exceptions = (100..100 + settings().window_entries as i64 / 4).map(held).collect();
    bench.machine.held(&asks, vec![HeldPage { exceptions, exhausted: false }]);
    assert!(!bench.machine.has_room_for_held());
    assert!(due.iter().all(|(kind, _)| !bench.machine.has_room_for_due(*kind)));
    assert!(bench.machine.has_room());
}

/// Goal: a destination that refuses a message more slowly than silence is found does not keep it
/// for ever: each refusal counts, is shown, and waits like any other. Oracle: the rows.
#[test]
fn a_refusal_that_comes_late_is_counted_and_ends_the_message() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let slow = message_for("t", "a");
    bench.read(&slow);
    let (mut now, mut row) = (0, None);
    for attempt in 1..=settings().attempts_max {
        if let Some(row) = row.take() {
            bench.machine.due(vec![row], 0.5);
        }
        let ticket = bench.machine.submissions(9)[0].ticket;
        now += 200;
        bench.at(now);
        bench.publish("t", "other");
        now += 200;
        bench.at(now);
        bench.machine.look_for_silence(0.5);
        assert_eq!(bench.machine.load().unanswered, 1, "parked, and awaited");
        let [ExceptionChange::Park(parked)] = &changes(&mut bench)[..] else { panic!() };
        let text = parked.error.clone().unwrap_or_default();
        assert_eq!((parked.fault, parked.attempts), (Some(message::Fault::Broker), attempt - 1), "{text}");
        let outcome = Err(PublishError::refused("no price"));
        bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
        let failed = |event: &Event| matches!(event, Event::Failed { attempt: at, .. } if *at == attempt);
        assert!(bench.machine.take_events().iter().any(failed), "it is told");
        // An operator may have decided about the row meanwhile: only what is read again counts.
        let waiting = |attempts| Exception { attempts, ..exception(1, &slow, ExceptionState::Retrying) };
        bench.machine.due(vec![waiting(attempt - 1)], 0.5);
        assert!(bench.machine.submissions(9).is_empty(), "it waits before the next attempt");
        let [ExceptionChange::Park(parked)] = &changes(&mut bench)[..] else { panic!() };
        assert_eq!((parked.fault, parked.attempts), (Some(message::Fault::Message), attempt));
        assert_eq!(parked.error.as_deref(), Some("no price"));
        let is_last = attempt == settings().attempts_max;
        assert_eq!(parked.state == ExceptionState::Dead, is_last);
        assert_eq!(parked.due_in.is_none(), is_last);
        row = Some(waiting(attempt));
    }
}

/// Goal: the operator can read at least the text of an error that comes late and does not count.
/// Oracle: the row of the next silence, and that it is gone after an answer in time.
#[test]
fn an_error_that_comes_late_is_shown_with_the_next_silence() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let slow = message_for("t", "a");
    bench.read(&slow);
    for (round, is_shown) in [(0, false), (1, true)] {
        let ticket = bench.machine.submissions(9)[0].ticket;
        bench.at(1_000 * round + 200);
        bench.publish("t", "other");
        bench.at(1_000 * round + 400);
        bench.machine.look_for_silence(0.5);
        let [ExceptionChange::Park(parked)] = &changes(&mut bench)[..] else { panic!() };
        let text = parked.error.clone().unwrap_or_default();
        assert_eq!(text.contains("no memory"), is_shown, "{text}");
        let error = PublishError::new(message::Fault::Broker, message::FaultScope::Message, "no memory");
        bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
        bench.machine.due(vec![exception(1, &slow, ExceptionState::Retrying)], 0.5);
    }
    let ticket = bench.machine.submissions(9)[0].ticket;
    bench.confirm(ticket);
    assert!(bench.machine.load().unanswered == 0 && bench.machine.open_len() == 0);
}

fn changes(bench: &mut Bench) -> Vec<ExceptionChange> {
    let mut changes = Vec::new();
    while let Some(checkpoint) = bench.machine.checkpoint() {
        changes.extend(checkpoint.changes);
        bench.machine.checkpointed();
    }
    changes
}
