//! Destinations that take messages more slowly than they come.

use std::collections::HashSet;
use std::time::Duration;

use message::{Fault, FaultScope, MaxInFlightPerKey, Message, PublishError, Receipt, Submission, Ticket};
use outbox_log::{Cursor, EntryId, Exception, ExceptionState, HeldQueue, HeldQueues, Mark, QueueName};

use super::bench::{Bench, exception, message_for};
use super::world::settings;
use super::*;
use crate::event::Event;

/// How many messages of topic `t` the destination takes at once.
const ROOM: usize = 10;

/// A destination that answers one message after the other, and has room for [`ROOM`] of topic `t`.
struct Slow {
    bench: Bench,
    log: Vec<Message>,
    taken: Vec<Submission>,
    published: Vec<EntryId>,
    /// How often a message found no room.
    refused: usize,
    /// Held rows that were read.
    rows: usize,
    /// Walks over the names of all held queues.
    walks: usize,
    events: Vec<Event>,
}

impl Slow {
    fn new() -> Self {
        let options = EngineOptions { window_entries: 65_536, unstored_max: 10_000, ..settings() };
        let mut machine = Machine::new(options, Cursor::at(Mark::new("0")), Blocks::default());
        machine.session_started(MaxInFlightPerKey::One);
        let bench = Bench { machine, last: 0 };
        Self {
            bench,
            log: Vec::new(),
            taken: Vec::new(),
            published: Vec::new(),
            refused: 0,
            rows: 0,
            walks: 0,
            events: Vec::new(),
        }
    }

    fn read(&mut self, messages: usize) {
        self.read_with(messages, 40);
    }

    /// Reads messages of this many keys from the log; of none, if it is zero.
    fn read_with(&mut self, messages: usize, keys: usize) {
        for _ in 0..messages {
            let mut message = message_for("t", &format!("k{}", self.log.len() % keys.max(1)));
            message.key = message.key.filter(|_| keys > 0);
            self.bench.read(&message);
            self.log.push(message);
        }
    }

    /// Returns how many rows were written because an entry was held.
    fn parked(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Parked(_))).count()
    }

    fn submit(&mut self) {
        for submission in self.bench.machine.submissions(9_999) {
            if self.taken.len() < ROOM {
                self.taken.push(submission);
            } else {
                self.refused += 1;
                self.receipt(submission.ticket, Err(full()));
            }
        }
        self.events.extend(self.bench.machine.take_events());
    }

    /// Answers the first message that the destination has.
    fn answer(&mut self) {
        let Submission { ticket, message } = self.taken.remove(0);
        let place = self.log.iter().position(|logged| logged.id == message.id).unwrap();
        self.published.push(EntryId(place as i64 + 1));
        self.receipt(ticket, Ok(()));
    }

    fn receipt(&mut self, ticket: Ticket, outcome: Result<(), PublishError>) {
        self.bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    }

    /// Stores what has changed, and reads back what is held.
    fn read_back(&mut self) {
        // Entries held behind one in flight cannot be stored before that one is answered.
        (0..100).for_each(|_| drop(self.bench.cursor()));
        let ids = (1..=self.log.len() as i64).map(EntryId);
        let held: Vec<Exception> = ids
            .filter(|id| !self.published.contains(id) && !self.is_taken(*id))
            .map(|id| exception(id.0, &self.log[id.0 as usize - 1], ExceptionState::Held))
            .collect();
        if self.bench.machine.wanted_names().is_some() {
            self.walks += 1;
            self.bench.machine.asks();
            let mut names = HashSet::new();
            let name = |held: &Exception| QueueName::of(held.entry.topic(), held.entry.key());
            let firsts = held.iter().filter(|held| names.insert(name(held)));
            let queue = |held: &Exception| HeldQueue {
                name: name(held),
                first: held.entry.id,
                topic: String::from("t"),
            };
            let queues = firsts.map(queue).collect();
            self.bench.machine.names(HeldQueues { queues, exhausted: true });
        }
        self.rows += self.bench.read_back(&held);
    }

    fn is_taken(&self, id: EntryId) -> bool {
        self.taken.iter().any(|taken| taken.message.id == self.log[id.0 as usize - 1].id)
    }
}

fn full() -> PublishError {
    PublishError::topic_busy("enough others wait").saturated()
}

fn is_of_stop(event: &Event) -> bool {
    matches!(event, Event::TopicBlocked { .. } | Event::TopicUnblocked { .. } | Event::Failed { .. })
}

/// Goal: a destination that is slow looks neither stopped nor failing, is reported once, and gets
/// everything in order at its own pace. Oracle: the events, the rows, the blocked topics, the order
/// of each key, and how often a message is handed over in vain.
#[test]
fn a_slow_destination_is_busy_and_not_stopped() {
    let mut slow = Slow::new();
    slow.read(400);
    slow.submit();
    assert_eq!(slow.taken.len(), ROOM);
    // One of each key was handed over; the others are held now.
    slow.submit();
    let load = slow.bench.machine.load();
    assert_eq!((load.blocked_topics, load.busy_topics, load.in_flight), (0, 1, ROOM));
    let parked = slow.events.iter().filter_map(|event| match event {
        Event::Parked(parked) => Some((parked.state, parked.due_in)),
        _ => None,
    });
    let parked: Vec<_> = parked.collect();
    assert!(parked.len() == 390 && parked.iter().all(|parked| *parked == (ExceptionState::Held, None)));
    for _ in 0..4_000 {
        if slow.published.len() == 400 {
            break;
        }
        if !slow.taken.is_empty() {
            slow.answer();
        }
        slow.submit();
        slow.read_back();
        slow.submit();
    }
    assert_eq!(slow.published.len(), 400, "without any pause");
    for key in 0..40 {
        let of_key: Vec<_> = slow.published.iter().filter(|id| (id.0 - 1) % 40 == key).collect();
        assert!(of_key.is_sorted() && of_key.len() == 10, "{of_key:?}");
    }
    assert!(slow.events.iter().all(|event| !is_of_stop(event)));
    let begins = |event: &&Event| matches!(event, Event::Busy { begins: Some(_), .. });
    assert_eq!(slow.events.iter().filter(begins).count(), 1, "it is reported once");
    let busy = slow.events.iter().filter(|event| matches!(event, Event::Busy { .. })).count();
    assert_eq!(busy, slow.refused, "each is counted");
    slow.bench.at(60_000);
    slow.submit();
    assert!(matches!(&slow.events.last(), Some(Event::NotBusy { topic }) if topic == "t"));
    assert_eq!(slow.bench.machine.load().busy_topics, 0);
}

/// Goal: what a slow destination cannot take costs the database little, whatever the keys of its
/// messages are, and it is never without work. Oracle: the rows that are written and read for each
/// message, that the destination has messages after each answer, and that few keys need no walk
/// over all held queues.
#[test]
fn what_waits_for_room_is_neither_written_nor_read_again_and_again() {
    for keys in [0, 3, 12, 300] {
        let mut slow = Slow::new();
        slow.read_with(300, keys);
        slow.submit();
        slow.submit();
        let mut idle = 0;
        for _ in 0..1_000 {
            if slow.published.len() == 300 {
                break;
            }
            if slow.taken.is_empty() {
                idle += 1;
            } else {
                slow.answer();
            }
            slow.submit();
            slow.read_back();
            slow.submit();
        }
        let Slow { published, rows, walks, .. } = &slow;
        let parked = slow.parked();
        assert_eq!(published.len(), 300, "{keys} keys: without any pause");
        assert!(parked <= 600, "{keys} keys: {parked} rows were written");
        assert!(*rows <= 900, "{keys} keys: {rows} rows were read");
        assert!(idle < 5, "{keys} keys: the destination had nothing {idle} times");
        assert!(keys > 3 || *walks == 0, "{keys} keys: {walks} walks over all held queues");
    }
}

/// Goal: while a destination has no room, what it has is not read back with each answer, to be
/// refused again. Oracle: after how many answers the topic goes on.
#[test]
fn what_waits_for_room_is_read_back_once_half_of_it_is_free() {
    let mut slow = Slow::new();
    slow.read(40);
    slow.submit();
    for answers in 0..ROOM / 2 {
        assert!(slow.bench.machine.blocks.is_blocked("t"), "after {answers} answers");
        slow.answer();
    }
    assert!(!slow.bench.machine.blocks.is_blocked("t"));
}

/// Goal: a topic continues after a pause if its destination has none of its messages, because other
/// topics fill it. Oracle: what is read back, and when.
#[test]
fn a_topic_without_anything_at_its_destination_is_tried_again() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let message = message_for("t", "k");
    bench.read(&message);
    let held = exception(1, &message, ExceptionState::Held);
    let mut now = 0;
    for pause in [1_000, 2_000, 4_000] {
        let ticket = bench.machine.submissions(9)[0].ticket;
        bench.machine.receipt(Receipt { ticket, outcome: Err(full()) }, 0.5);
        bench.cursor();
        bench.at(now + pause - 1);
        assert!(bench.machine.submissions(9).is_empty());
        assert!(bench.machine.held_asks().is_empty(), "before {pause} ms");
        now += pause;
        bench.at(now);
        assert!(bench.machine.submissions(9).is_empty());
        bench.read_back(std::slice::from_ref(&held));
    }
    assert_eq!(bench.machine.submissions(9).len(), 1);
}

/// Goal: entries that leave the window behind a stopped key do not count against their topic, whose
/// next turn would otherwise begin after a pause. Oracle: the entries that the topic lets through,
/// while two of it are at the destination and never answered.
#[test]
fn what_a_stopped_key_takes_out_of_the_window_makes_room_for_others() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    let log = ["k", "k", "k", "a", "b", "c", "d"].map(|key| message_for("t", key));
    log.iter().for_each(|message| bench.read(message));
    let sent: Vec<Ticket> = bench.machine.submissions(9).iter().map(|sent| sent.ticket).collect();
    assert_eq!(sent.len(), 5, "one of each key");
    bench.machine.receipt(Receipt { ticket: sent[0], outcome: Err(full()) }, 0.5);
    assert!(bench.machine.submissions(9).is_empty());
    (0..9).for_each(|_| drop(bench.cursor()));
    sent[1..3].iter().for_each(|ticket| bench.confirm(*ticket));

    let held = [1, 2, 3].map(|id| exception(id, &log[id as usize - 1], ExceptionState::Held));
    assert_eq!(bench.read_back(&held), 2, "it had taken four, and two are answered");
    assert!(bench.machine.blocks.is_full("t"));

    let ticket = bench.machine.submissions(9)[0].ticket;
    let error = PublishError::new(Fault::Broker, FaultScope::Message, "not now");
    bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
    assert!(bench.machine.blocks.is_full("t"), "the other one of its key is in the window");
    assert!(bench.machine.submissions(9).is_empty());
    assert_eq!(bench.machine.open_len(), 2);
    assert!(!bench.machine.blocks.is_full("t"));
}

/// Goal: a slow destination that then fails is stopped, with a probe. Oracle: the blocked topics.
#[test]
fn a_busy_topic_that_fails_is_stopped() {
    let mut slow = Slow::new();
    slow.read(40);
    slow.submit();
    let ticket = slow.taken.remove(0).ticket;
    slow.receipt(ticket, Err(PublishError::topic_busy("no connection")));
    assert_eq!(slow.bench.machine.load().blocked_topics, 1);
    let ticket = slow.taken.remove(0).ticket;
    slow.receipt(ticket, Ok(()));
    assert_eq!(slow.bench.machine.load().blocked_topics, 0);
    slow.read_back();
    slow.bench.at(60_000);
    slow.submit();
    assert!(slow.events.iter().any(|event| matches!(event, Event::TopicBlocked { .. })));
}

/// Goal: a slow destination that messages name themselves is reported once, and not with each of
/// its messages. Oracle: the events.
#[test]
fn a_slow_destination_that_messages_name_is_reported_once() {
    let mut bench = Bench::new(MaxInFlightPerKey::One);
    (0..9).for_each(|key| bench.read(&message_for("t", &format!("k{key}"))));
    let full = |at: &str| PublishError::new(Fault::Broker, FaultScope::Message, at).saturated();
    for (number, Submission { ticket, .. }) in bench.machine.submissions(9).into_iter().enumerate() {
        let at = if number % 2 == 0 { "a.example is full" } else { "b.example is full" };
        bench.machine.receipt(Receipt { ticket, outcome: Err(full(at)) }, 0.5);
    }
    let events = bench.machine.take_events();
    let named = |event: &Event| match event {
        Event::NamedBusy { reason } => Some(reason.clone()),
        _ => None,
    };
    let named: Vec<_> = events.iter().filter_map(named).collect();
    assert_eq!(named, ["a.example is full", "b.example is full"]);
    let is_quiet = |event: &&Event| matches!(event, Event::Postponed(parked) if parked.state == ExceptionState::Retrying);
    assert_eq!(events.iter().filter(is_quiet).count(), 9);
    assert!(events.iter().all(|event| !matches!(event, Event::Parked(_)) && !is_of_stop(event)));
    bench.at(59_999);
    bench.machine.submissions(9);
    assert!(bench.machine.take_events().is_empty());
    bench.at(60_000);
    bench.machine.submissions(9);
    let over = bench.machine.take_events();
    assert!(over.len() == 2 && over.iter().all(|event| matches!(event, Event::NamedNotBusy { .. })));
}

/// Goal: a destination is not asked before the time that it has named. Oracle: the delay of the
/// retry, for a topic and for a message, and that a shorter time changes nothing.
#[test]
fn a_retry_waits_for_the_time_that_the_destination_has_named() {
    for scope in [FaultScope::Topic, FaultScope::Message] {
        for (seconds, at_least, at_most) in [(120, 120_000, 121_000), (0, 100, 1_000)] {
            let mut bench = Bench::new(MaxInFlightPerKey::One);
            bench.read(&message_for("t", "k"));
            let ticket = bench.machine.submissions(9)[0].ticket;
            let error = PublishError::new(Fault::Broker, scope, "come back later");
            let outcome = Err(error.not_before(Duration::from_secs(seconds)));
            bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
            let due_in = bench.machine.take_events().into_iter().find_map(|event| match event {
                Event::Parked(parked) => parked.due_in,
                _ => None,
            });
            let due_in = due_in.unwrap().as_millis();
            assert!((at_least..=at_most).contains(&due_in), "{scope} {seconds}: {due_in} ms");
        }
    }
}
