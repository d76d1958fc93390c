//! Ways in which a relay could run without making progress. Each was found by reading the code.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use message::{MaxInFlightPerKey, Message, PublishError, Receipt, Submission};
use outbox_log::{Cursor, Difference, Entry, EntryId, ExceptionState, Mark, Page};

use super::bench::{Bench, exception, message_for};
use super::world::{Log, settings};
use super::*;
use crate::event::{Event, News};

impl Bench {
    /// Looks for silence while no submission is answered, in any session.
    fn look_for_silence(&mut self) {
        self.machine.look_for_silence(0.5);
        if self.machine.session_end().is_some() {
            self.machine.session_started(MaxInFlightPerKey::One);
        }
        let _ = self.machine.submissions(9);
    }
}

fn wide_bench(window: MaxInFlightPerKey) -> Bench {
    let mut machine = Machine::new(wide(), Cursor::at(Mark::new("0")), Blocks::default());
    machine.session_started(window);
    Bench { machine, last: 0 }
}

fn wide() -> EngineOptions {
    EngineOptions { window_entries: 65_536, ..settings() }
}

#[test]
fn a_broker_that_confirms_nothing_is_told() {
    let mut bench = wide_bench(MaxInFlightPerKey::Pipelined);
    bench.read(&message_for("a", "a"));
    let ticket = bench.machine.submissions(9)[0].ticket;
    for ms in (0..=60_000).step_by(100) {
        bench.at(ms);
        bench.look_for_silence();
    }
    let silent = Event::Session(News::Silent(Duration::from_secs(30)));
    assert_eq!(bench.machine.take_events(), [silent], "once");
    bench.machine.receipt(Receipt { ticket, outcome: Ok(()) }, 0.5);
    bench.look_for_silence();
    let events = bench.machine.take_events();
    assert!(matches!(events[..], [Event::Published { .. }, Event::Session(News::Answers)]), "{events:?}");
}

#[test]
fn a_silent_message_before_many_held_ones_does_not_stop_reading() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    // Another topic works.
    bench.publish("c", "c");
    bench.read(&message_for("a", "a"));
    assert_eq!(bench.machine.submissions(9).len(), 1, "this one is never answered");
    bench.read(&message_for("b", "b"));
    let ticket = bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::topic_unavailable("no such topic"));
    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    let mut read = 0;
    while bench.machine.has_room() && read < 20_000 {
        bench.read(&message_for("b", "b"));
        read += 1;
        if read % 500 == 0 {
            bench.cursor();
        }
    }
    assert!(read < 20_000);
    for ms in (0..3_600_000).step_by(100) {
        bench.at(ms);
        bench.look_for_silence();
        bench.cursor();
    }
    assert!(bench.machine.has_room(), "nothing is read any more, of any topic");
}

fn refuse_all(state: ExceptionState) {
    let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
    let all: Vec<Message> = (0..10).map(|n| message_for("missing", &format!("k{n}"))).collect();
    let due = all.iter().enumerate().map(|(n, m)| exception(n as i64 + 1, m, state));
    bench.machine.due(due.collect(), 0.5);
    let mut sessions = 0;
    loop {
        let batch = bench.machine.submissions(99);
        if batch.is_empty() {
            break;
        }
        let mut error = PublishError::topic_unavailable("no such topic");
        for Submission { ticket, .. } in batch {
            bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
            error = PublishError::session_lost("an earlier message failed");
        }
        sessions += 1;
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        bench.cursor();
    }
    assert!(sessions <= 2, "{sessions} sessions");
}

#[test]
fn retries_of_one_missing_topic_end_few_sessions() {
    refuse_all(ExceptionState::Retrying);
}

#[test]
fn scheduled_messages_of_one_missing_topic_end_few_sessions() {
    refuse_all(ExceptionState::Scheduled);
}

/// Goal: an operator discards the message that probes its topic, and the topic does not wait for it
/// forever.
#[test]
fn a_topic_whose_probe_is_discarded_is_tried_by_the_next_message() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    let (probe, next) = (message_for("missing", "a"), message_for("missing", "b"));
    bench.read(&probe);
    let ticket = bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::topic_unavailable("no such topic"));
    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    bench.cursor();
    assert_eq!(bench.machine.load().blocked_topics, 1);
    bench.machine.due(vec![exception(1, &probe, ExceptionState::Discarded)], 0.5);
    bench.cursor();
    assert_eq!(bench.machine.load().blocked_topics, 0, "it waits for a message that will never be sent");
    bench.read(&next);
    assert_eq!(bench.machine.submissions(9).len(), 1);
}

/// Imitates Kafka's two kinds of session. A refused batch ends the first kind without naming a
/// culprit. The next session sends as many messages as were unconfirmed, one by one, in the order
/// in which they come.
#[test]
fn a_poisoned_retry_is_sent_alone_while_others_come() {
    let mut bench = wide_bench(MaxInFlightPerKey::Pipelined);
    bench.last = 1;
    let poison = message_for("orders", "poison");
    bench.machine.due(vec![exception(1, &poison, ExceptionState::Retrying)], 0.5);
    let (mut suspects, mut sessions, mut counted, mut number) = (0_usize, 0, false, 0);
    while sessions < 400 && !counted {
        let is_singles = suspects > 0;
        let mut left = std::mem::take(&mut suspects);
        bench.machine.session_started(if is_singles {
            MaxInFlightPerKey::One
        } else {
            MaxInFlightPerKey::Pipelined
        });
        sessions += 1;
        // Messages arrive while sessions change.
        for _ in 0..3 {
            if bench.machine.has_room() {
                number += 1;
                bench.read(&message_for("orders", &format!("n{number}")));
            }
        }
        while bench.machine.session_end().is_none() {
            let batch = bench.machine.submissions(1_000);
            if batch.is_empty() {
                break;
            }
            if is_singles {
                for Submission { ticket, message } in batch {
                    let outcome = if left == 0 {
                        Err(PublishError::session_lost("no message is suspect any more"))
                    } else {
                        left -= 1;
                        if message.key == poison.key {
                            counted = true;
                            Err(PublishError::refused("poison"))
                        } else {
                            Ok(())
                        }
                    };
                    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
                }
            } else {
                let has_poison = batch.iter().any(|one| one.message.key == poison.key);
                let len = batch.len();
                for Submission { ticket, .. } in batch {
                    let outcome = if has_poison {
                        Err(PublishError::session_lost("a batch was refused"))
                    } else {
                        Ok(())
                    };
                    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
                }
                if has_poison {
                    suspects = len;
                }
            }
        }
        if is_singles {
            suspects = suspects.max(left);
        }
        bench.cursor();
        // More messages arrive while sessions change.
        for _ in 0..3 {
            if bench.machine.has_room() {
                number += 1;
                bench.read(&message_for("orders", &format!("n{number}")));
            }
        }
    }
    assert!(counted, "the culprit was never sent alone in {sessions} sessions");
}

#[test]
fn a_retry_leaves_while_new_entries_come() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    bench.last = 1;
    let retried = message_for("t", "retried");
    for number in 0..10 {
        bench.read(&message_for("t", &format!("n{number}")));
    }
    bench.machine.due(vec![exception(1, &retried, ExceptionState::Retrying)], 0.5);
    let mut number = 10;
    for _ in 0..500 {
        for _ in 0..2 {
            if bench.machine.has_room() && bench.machine.open_len() < 20 {
                number += 1;
                bench.read(&message_for("t", &format!("n{number}")));
            }
        }
        let batch = bench.machine.submissions(2);
        for (place, Submission { ticket, message }) in batch.into_iter().enumerate() {
            if message.key == retried.key {
                return;
            }
            // One in two is refused: an ordinary poisoned message.
            let outcome = if place == 0 { Err(PublishError::refused("poison")) } else { Ok(()) };
            bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
        }
        bench.cursor();
    }
    panic!("the retry has not left in 500 rounds, {number} entries passed it");
}

#[test]
fn a_topic_that_stays_blocked_is_free_when_little_is_waited_for() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    // Half of the window is 20.
    for number in 0..15 {
        bench.read(&message_for("x", &format!("x{number}")));
        if number < 8 {
            bench.read(&message_for("y", &format!("y{number}")));
        }
    }
    let silent = bench.machine.submissions(99);
    bench.only_others_are_answered();
    assert_eq!((bench.machine.load().unanswered, bench.machine.load().blocked_topics), (23, 2));
    let first = silent.iter().find(|one| one.message.topic.as_str() == "y").unwrap().ticket;
    bench.confirm(first);
    assert_eq!(bench.machine.load().blocked_topics, 2, "too many submissions are still unanswered");
    for one in silent.iter().filter(|one| one.message.topic.as_str() == "x") {
        bench.confirm(one.ticket);
    }
    for ms in (300..3_600_000).step_by(1_000) {
        bench.at(ms);
        bench.machine.look_for_silence(0.5);
        bench.cursor();
    }
    assert_eq!(
        bench.machine.load().blocked_topics,
        0,
        "y was answered and few submissions are unanswered, but it stays blocked"
    );
}

/// A message that breaks sessions and was parked once.
#[test]
fn a_retry_that_breaks_sessions_is_found_while_others_come() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    bench.last = 1;
    let breaker = message_for("t", "breaker");
    bench.machine.due(vec![exception(1, &breaker, ExceptionState::Retrying)], 0.5);
    let mut broken = 0;
    for number in 0..300 {
        if bench.machine.has_room() {
            bench.read(&message_for("t", &format!("n{number}")));
        }
        let batch = bench.machine.submissions(9);
        let mut is_broken = false;
        for Submission { ticket, message } in batch {
            is_broken |= message.key == breaker.key;
            let outcome = if is_broken { Err(PublishError::session_lost("broken")) } else { Ok(()) };
            bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
        }
        if is_broken {
            broken += 1;
            bench.machine.session_started(MaxInFlightPerKey::One);
        }
        bench.cursor();
        if bench.machine.readmitted_len() == 0 {
            return;
        }
    }
    panic!("{broken} sessions broken, and it is still in the window");
}

#[test]
fn a_topic_that_was_busy_once_does_not_wait_for_a_silent_one() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    // Both have worked before.
    for topic in ["a", "b"] {
        bench.publish(topic, topic);
    }
    bench.read(&message_for("a", "a"));
    assert_eq!(bench.machine.submissions(9).len(), 1, "this one is not answered");
    bench.read(&message_for("b", "b"));
    let ticket = bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::topic_busy("for a moment"));
    bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    let mut stored = 0;
    for ms in (0..3_600_000).step_by(100) {
        bench.at(ms);
        if ms % 60_000 == 0 {
            bench.read(&message_for("b", "b"));
        }
        bench.look_for_silence();
        let checkpoint = bench.machine.checkpoint();
        stored += checkpoint.map_or(0, |checkpoint| checkpoint.changes.len());
        bench.machine.checkpointed();
    }
    assert!(stored > 0, "the retry of b was not stored in an hour");
}

#[test]
fn a_silent_message_before_many_scheduled_ones_does_not_stop_reading() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    bench.publish("c", "c");
    bench.read(&message_for("a", "a"));
    assert_eq!(bench.machine.submissions(9).len(), 1);
    let mut read = 0;
    while bench.machine.has_room() && read < 20_000 {
        read += 1;
        let mark = |id: i64| Mark::new(id.to_string());
        let (base, head) = (mark(bench.last), mark(bench.last + 1));
        bench.last += 1;
        let difference = Arc::new(Difference { base, head, ceiling: bench.last });
        let message = Ok(message_for("b", "b"));
        let deliver_in = Some(Duration::from_secs(9));
        let entry = Entry { id: EntryId(bench.last), message, deliver_in };
        bench.machine.page(&difference, Page { entries: vec![entry], exhausted: true });
    }
    for ms in (0..3_600_000).step_by(100) {
        bench.at(ms);
        bench.look_for_silence();
        bench.cursor();
    }
    assert!(bench.machine.has_room(), "nothing is read any more");
}

/// A topic with more keys than there are remembered names falls silent, and answers again.
#[test]
fn keys_of_a_silent_topic_are_free_after_it_has_answered() {
    let mut bench = wide_bench(MaxInFlightPerKey::Pipelined);
    let cursor = Cursor::at(Mark::new("0"));
    let mut log = Log { entries: Vec::new(), delays: HashMap::new(), cursor, rows: BTreeMap::new() };
    let keys = 100;
    for _ in 0..2 {
        for key in 0..keys {
            log.entries.push(message_for("t", &format!("k{key}")));
            bench.read(log.entries.last().unwrap());
        }
    }
    let mut silent = bench.machine.submissions(usize::MAX);
    assert_eq!(silent.len(), 2 * keys);
    bench.at(290);
    log.entries.push(message_for("u", "other"));
    bench.read(log.entries.last().unwrap());
    let others = bench.machine.submissions(9);
    bench.confirm(others[0].ticket);
    bench.at(300);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.load().unanswered, 2 * keys);
    let store = |bench: &mut Bench, log: &mut Log| {
        if let Some(checkpoint) = bench.machine.checkpoint() {
            log.store(checkpoint, 300);
            bench.machine.checkpointed();
        }
    };
    while bench.machine.unstored_len() > 0 {
        store(&mut bench, &mut log);
    }
    // It answers again: receipts come as the session hands them over, with a checkpoint and a query
    // after each batch.
    let mut turn = 0;
    let mut ask = |bench: &mut Bench, log: &Log| {
        turn += 1;
        if turn % 2 == 0
            && let Some(after) = bench.machine.wanted_names()
        {
            bench.machine.asks();
            bench.machine.names(log.queues(after.as_ref(), 1_000));
            return;
        }
        let asks = bench.machine.held_asks();
        bench.machine.asks();
        let pages = asks.iter().map(|ask| log.held_page(ask, 10)).collect();
        bench.machine.held(&asks, pages);
    };
    while !silent.is_empty() {
        let lot: Vec<_> = silent.drain(..silent.len().min(4_096)).collect();
        for Submission { ticket, .. } in lot {
            bench.confirm(ticket);
        }
        store(&mut bench, &mut log);
        ask(&mut bench, &log);
    }
    for _ in 0..2_000 {
        store(&mut bench, &mut log);
        ask(&mut bench, &log);
    }
    // New messages of these keys.
    for key in 0..keys {
        log.entries.push(message_for("t", &format!("k{key}")));
        bench.read(log.entries.last().unwrap());
    }
    let mut left = 0;
    for _ in 0..2_000 {
        for Submission { ticket, .. } in bench.machine.submissions(usize::MAX) {
            left += 1;
            bench.confirm(ticket);
        }
        store(&mut bench, &mut log);
        ask(&mut bench, &log);
    }
    assert_eq!(left, keys);
}
