//! Messages that may themselves be the reason why their topic is blocked, and messages that fail
//! alone.

use std::time::Duration;

use message::{Fault, FaultScope, MaxInFlightPerKey, Message, OrderingKey, PublishError, Receipt, Ticket};
use outbox_log::{Cursor, EntryId, ExceptionState, HeldQueue, HeldQueues, Mark, QueueName};

use super::bench::{Bench, exception, message_for};
use super::world::settings;
use super::*;
use crate::event::Event;

fn wide_bench(window: MaxInFlightPerKey) -> Bench {
    let options = EngineOptions { window_entries: 65_536, ..settings() };
    let mut machine = Machine::new(options, Cursor::at(Mark::new("0")), Blocks::default());
    machine.session_started(window);
    Bench { machine, last: 0 }
}

/// A broker that hangs on some messages as if it were overloaded.
struct Hanging {
    bench: Bench,
    /// The messages of the log, from entry 1 on.
    log: Vec<Message>,
}

impl Hanging {
    /// Returns a topic with a message for each of these keys. The first one has failed this often,
    /// and the others wait for it.
    fn new(keys: &[&str], failures: u32) -> Self {
        let log = keys.iter().map(|key| message_for("t", key)).collect();
        let mut hanging = Self { bench: wide_bench(MaxInFlightPerKey::One), log };
        hanging.bench.read(&hanging.log[0].clone());
        for failure in 1..=failures {
            let sent = hanging.bench.machine.submissions(9);
            assert_eq!(sent.len(), 1, "failure {failure}");
            hanging.fail(sent[0].ticket);
            assert_eq!(hanging.bench.machine.load().blocked_topics, 1);
            if failure == 1 {
                hanging.log.clone()[1..].iter().for_each(|other| hanging.bench.read(other));
            }
            hanging.bench.cursor();
            if failure < failures {
                assert_eq!(hanging.bench.machine.wanted_names(), None, "too early after {failure}");
                hanging.due(1);
            }
        }
        hanging
    }

    /// Fails a submission. Returns the error that is stored with it, and its delay.
    fn fail(&mut self, ticket: Ticket) -> Option<(String, Option<Duration>)> {
        let outcome = Err(PublishError::topic_busy("no answer in time").about_this_message());
        self.bench.machine.receipt(Receipt { ticket, outcome }, 1.0);
        self.bench.machine.take_events().into_iter().rev().find_map(|event| match event {
            Event::Parked(parked) => parked.error.clone().map(|error| (error, parked.due_in)),
            _ => None,
        })
    }

    fn due(&mut self, id: usize) {
        let due = exception(id as i64, &self.log[id - 1], ExceptionState::Retrying);
        self.bench.machine.due(vec![due], 0.5);
    }

    /// Reads back what the machine asks for, from a database that holds these entries. Returns the
    /// keys of what is then submitted.
    fn read_back(&mut self, held: &[usize]) -> Vec<(Ticket, String)> {
        while self.bench.machine.wanted_names().is_some() {
            let queues = held.iter().map(|id| HeldQueue {
                name: QueueName::of("t", self.log[id - 1].key.as_ref().map(OrderingKey::as_str)),
                first: EntryId(*id as i64),
                topic: String::from("t"),
            });
            self.bench.machine.asks();
            self.bench.machine.names(HeldQueues { queues: queues.collect(), exhausted: true });
        }
        let held: Vec<_> =
            held.iter().map(|id| exception(*id as i64, &self.log[id - 1], ExceptionState::Held)).collect();
        self.bench.read_back(&held);
        let sent = self.bench.machine.submissions(9);
        sent.into_iter().map(|one| (one.ticket, one.message.key.clone().unwrap().to_string())).collect()
    }
}

/// Goal: one message on which the broker hangs does not stop its topic. Oracle: after its third
/// failure exactly one other message is sent, and its confirmation frees the topic for good.
#[test]
fn a_message_on_which_the_broker_hangs_stops_its_topic_until_another_one_is_answered() {
    let mut hanging = Hanging::new(&["a", "b", "c"], 3);
    let sent = hanging.read_back(&[2, 3]);
    assert_eq!(sent.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["b"], "one witness");
    assert_eq!(hanging.bench.machine.load().blocked_topics, 1);
    hanging.bench.confirm(sent[0].0);
    assert_eq!(hanging.bench.machine.load().blocked_topics, 0);
    hanging.bench.cursor();
    hanging.due(1);
    let ticket = hanging.bench.machine.submissions(9)[0].ticket;
    let (error, due_in) = hanging.fail(ticket).unwrap();
    assert!(error.starts_with("only this message fails") && error.ends_with("no answer in time"), "{error}");
    assert_eq!(hanging.bench.machine.load().blocked_topics, 0, "its failures concern its key only");
    assert_eq!(due_in, Some(Duration::from_secs(8)), "the fourth failure");
    let behind = hanging.log[0].clone();
    hanging.bench.read(&behind);
    hanging.bench.publish("t", "d");
    assert_eq!(hanging.bench.machine.in_flight_len(), 0, "its key waits");
}

/// Goal: a witness on which the broker hangs as well is followed by others, each once, and in an
/// outage one message more than the probe is tried at a time. Oracle: the keys that are sent.
#[test]
fn witnesses_take_turns_while_none_is_answered() {
    let mut hanging = Hanging::new(&["a", "b", "c", "d"], 3);
    let mut witnesses = Vec::new();
    for _ in 0..6 {
        let sent = hanging.read_back(&[2, 3, 4]);
        assert!(sent.len() <= 1, "{sent:?}");
        for (ticket, key) in sent {
            witnesses.push(key);
            hanging.fail(ticket);
        }
        hanging.bench.cursor();
        assert_eq!(hanging.bench.machine.load().blocked_topics, 1);
        hanging.due(1);
        let ticket = hanging.bench.machine.submissions(9)[0].ticket;
        hanging.fail(ticket);
        hanging.bench.cursor();
    }
    // The fourth search finds nothing new, and the next one begins anew.
    assert_eq!(witnesses, ["b", "c", "d", "b", "c"]);
}

/// Goal: a witness that turns out to be dead when it is read back is followed by another one.
/// Oracle: the message that is sent after the next failure, whose confirmation frees the topic.
#[test]
fn a_witness_that_can_never_be_sent_is_followed_by_another() {
    let mut hanging = Hanging::new(&["a", "b", "c"], 3);
    hanging.log[1].payload = vec![b'x'; settings().size_limit.message_bytes_max].into();
    assert!(hanging.read_back(&[2, 3]).is_empty(), "it is too large");
    hanging.bench.cursor();
    hanging.due(1);
    let ticket = hanging.bench.machine.submissions(9)[0].ticket;
    hanging.fail(ticket);
    let sent = hanging.read_back(&[3]);
    assert_eq!(sent.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["c"], "another witness");
    hanging.bench.confirm(sent[0].0);
    assert_eq!(hanging.bench.machine.load().blocked_topics, 0);
}

/// Goal: a failure that the message cannot have caused, like every failure of a broker with a log,
/// always stops the topic. Oracle: nothing else is sent, however often it fails.
#[test]
fn no_witness_is_tried_for_a_failure_that_no_message_causes() {
    let mut bench = wide_bench(MaxInFlightPerKey::One);
    let first = message_for("t", "a");
    bench.read(&first);
    for _ in 0..10 {
        let ticket = bench.machine.submissions(9)[0].ticket;
        bench.fail(ticket);
        bench.read(&message_for("t", "b"));
        bench.cursor();
        assert_eq!(bench.machine.wanted_names(), None);
        assert!(bench.machine.submissions(9).is_empty());
        bench.machine.due(vec![exception(1, &first, ExceptionState::Retrying)], 0.5);
    }
}

/// Goal: a probe that the destination answers, although with a failure of its own, no longer stops
/// its topic. Oracle: the blocked topics.
#[test]
fn a_probe_that_fails_alone_frees_its_topic() {
    let mut hanging = Hanging::new(&["a", "b"], 2);
    hanging.due(1);
    let ticket = hanging.bench.machine.submissions(9)[0].ticket;
    let outcome = Err(PublishError::new(Fault::Broker, FaultScope::Message, "its handler throws"));
    hanging.bench.machine.receipt(Receipt { ticket, outcome }, 0.5);
    assert_eq!(hanging.bench.machine.load().blocked_topics, 0);
}

/// Goal: messages that fail one by one, however many, are tried ever more rarely; a topic is tried
/// often. Oracle: the longest delay after twenty failures of each kind.
#[test]
fn a_message_that_fails_alone_is_retried_ever_more_rarely() {
    for (scope, seconds) in [(FaultScope::Message, 300), (FaultScope::Topic, 15)] {
        for fault in [Fault::Broker, Fault::Operator] {
            let mut bench = wide_bench(MaxInFlightPerKey::One);
            let message = message_for("t", "a");
            bench.read(&message);
            let mut due_in = None;
            for _ in 0..20 {
                let ticket = bench.machine.submissions(9)[0].ticket;
                let outcome = Err(PublishError::new(fault, scope, "not now"));
                bench.machine.receipt(Receipt { ticket, outcome }, 1.0);
                for event in bench.machine.take_events() {
                    if let Event::Parked(parked) = event {
                        due_in = parked.due_in;
                    }
                }
                bench.cursor();
                bench.machine.due(vec![exception(1, &message, ExceptionState::Retrying)], 0.5);
            }
            assert_eq!(due_in, Some(Duration::from_secs(seconds)), "{scope} {fault}");
        }
    }
}
