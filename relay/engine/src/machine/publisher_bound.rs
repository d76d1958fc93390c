//! Tests of the bound on a publisher's unanswered messages, and that other topics continue.

use std::sync::Arc;

use message::{EventType, MaxInFlightPerKey, Message, Receipt, Submission, Topic};
use outbox_log::{Cursor, Difference, Entry, EntryId, Mark, Page};

use super::bench::Bench;
use super::world::settings;
use super::*;

/// The time between two steps, in milliseconds.
const TURN_MS: u64 = 20;

/// A broker that answers only for topic `z`, and a publisher that keeps everything else until its
/// session ends.
struct Scene {
    bench: Bench,
    has: Vec<Submission>,
    most: usize,
    awaited_most: usize,
    now: u64,
    sessions: usize,
    /// When each message of `z` was read that has not been published.
    waiting: Vec<u64>,
    waited_most: u64,
}

impl Scene {
    fn new() -> Self {
        let settings = EngineOptions { page_entries: 12, unstored_max: 1_000, ..settings() };
        let mut machine = Machine::new(settings, Cursor::at(Mark::new("0")), Blocks::default());
        machine.session_started(MaxInFlightPerKey::Pipelined);
        let bench = Bench { machine, last: 0 };
        let has = Vec::new();
        let (most, awaited_most, now, sessions, waited_most) = (0, 0, 0, 1, 0);
        Self { bench, has, most, awaited_most, now, sessions, waiting: Vec::new(), waited_most }
    }

    /// Reads messages without a key, as one batch.
    fn read(&mut self, topic: &str, count: i64) {
        let bench = &mut self.bench;
        let mark = |id: i64| Mark::new(id.to_string());
        let ids = bench.last + 1..=bench.last + count;
        let (base, head) = (mark(bench.last), mark(bench.last + count));
        bench.last += count;
        let difference = Arc::new(Difference { base, head, ceiling: bench.last });
        let entry = |id| {
            let message = Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "x");
            Entry { id: EntryId(id), message: Ok(message), deliver_in: None }
        };
        bench.machine.page(&difference, Page { entries: ids.map(entry).collect(), exhausted: true });
    }

    fn read_z(&mut self) {
        self.read("z", 1);
        self.waiting.push(self.now);
    }

    fn turn(&mut self) {
        self.now += TURN_MS;
        self.bench.at(self.now);
        self.bench.machine.look_for_silence(0.5);
        if self.bench.machine.session_end().is_some() {
            self.has.clear();
            self.bench.machine.session_started(MaxInFlightPerKey::Pipelined);
            self.sessions += 1;
        }
        self.submit();
        for _ in 0..20 {
            self.bench.cursor();
        }
    }

    /// Advances time, with one message of `z` in each step.
    fn pass(&mut self, turns: u64) {
        for _ in 0..turns {
            self.read_z();
            self.turn();
        }
    }

    fn submit(&mut self) {
        for submission in self.bench.machine.submissions(usize::MAX) {
            if submission.message.topic.as_str() == "z" {
                let receipt = Receipt { ticket: submission.ticket, outcome: Ok(()) };
                self.bench.machine.receipt(receipt, 0.5);
                let waited = self.now - self.waiting.remove(0);
                self.waited_most = self.waited_most.max(waited);
            } else {
                self.has.push(submission);
                self.most = self.most.max(self.has.len());
            }
        }
        self.awaited_most = self.awaited_most.max(self.bench.machine.load().unanswered);
    }
}

/// Goal: several topics stop answering one after the other, none of which fills the window, and
/// memory stays bounded. Oracle: the publisher's own count, and every message of the topic that
/// answers.
#[test]
fn several_silent_topics_stay_within_two_windows_and_delay_no_other() {
    let mut scene = Scene::new();
    scene.pass(5);
    for round in 0..4 {
        for topic in ["a1", "a2", "a3"] {
            scene.read(&format!("{topic}-{round}"), 30);
            scene.pass(40);
        }
    }
    assert!(scene.most <= 80, "the publisher has {} messages", scene.most);
    assert!(scene.awaited_most <= 52, "{} messages are awaited", scene.awaited_most);
    assert!(scene.sessions > 1, "nothing has reached the bound");
    assert_eq!(scene.waited_most, TURN_MS, "another topic waits");
}

/// Goal: one topic that fills the window alone costs no session. Oracle: the number of sessions.
#[test]
fn one_silent_topic_that_fills_the_window_is_awaited_in_one_session() {
    let mut scene = Scene::new();
    scene.pass(5);
    // A window is 40 entries, and a batch 12.
    scene.read("a", 51);
    scene.pass(200);
    assert_eq!((scene.bench.machine.load().unanswered, scene.sessions), (51, 1));
    assert_eq!(scene.waited_most, TURN_MS, "another topic waits");
}

/// Goal: a publisher that gets no more, in a window with room, does not stop other topics for
/// longer than a full window does. Oracle: how long the topic that answers waits.
#[test]
fn a_full_publisher_is_replaced_when_others_wait_for_it() {
    let mut scene = Scene::new();
    scene.pass(5);
    for topic in ["a", "b"] {
        scene.read(topic, 25);
        scene.pass(40);
    }
    assert_eq!((scene.bench.machine.load().unanswered, scene.sessions), (50, 1));
    // 30 of them fit.
    scene.read("c", 31);
    scene.submit();
    scene.read_z();
    assert!(scene.bench.machine.has_room() && scene.bench.machine.load().in_flight == 30);
    (0..60).for_each(|_| scene.turn());
    assert!(scene.sessions > 1 && scene.waiting.is_empty(), "another topic waits for ever");
    assert!(scene.waited_most <= 2 * 300, "{} ms", scene.waited_most);
}
