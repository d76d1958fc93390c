//! Runs the machine under thousands of random schedules, against a model of log, exceptions and
//! broker with faults everywhere.
//!
//! The oracle is independent of the machine: at the end, with all faults healed, every entry is in
//! the broker, and the first occurrences of each key are in log order.

mod checks;
mod log;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use message::{
    EventType, FaultScope, MaxInFlightPerKey, Message, OrderingKey, PublishError, Receipt, Submission, Topic,
};
use outbox_log::{
    Cursor, Difference, DueKind, DuePage, DuePosition, EntryId, ExceptionState, HeldAsk, HeldPage,
    HeldQueues, Mark, Page, PauseScope, QueueName,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub(super) use self::log::Log;
use self::log::Row;
use super::*;
use crate::paused::Paused;

const TOPICS: [&str; 3] = ["orders", "payments", "missing"];

/// With a payload of this many bytes, a message is larger than the destination takes.
const OVERSIZE: usize = 2_000;

/// A query on its way to the database, or the answer on its way back.
enum Asked {
    Nothing,
    Due(DueKind, Option<DuePosition>),
    Held(Vec<HeldAsk>),
    Names(Option<QueueName>),
    Pauses,
    DueAnswer(DueKind, DuePage),
    HeldAnswer(Vec<HeldAsk>, Vec<HeldPage>),
    NamesAnswer(HeldQueues),
    PausesAnswer(BTreeSet<PauseScope>),
}

struct World {
    rng: SmallRng,
    log: Log,
    broker: Vec<Message>,
    poison: HashSet<MessageIdText>,
    /// Messages on which the broker hangs as if it were overloaded: until everything is healed, or
    /// for ever if that is the only fault.
    hanging: HashSet<MessageIdText>,
    hangs_for_ever: bool,
    missing: bool,
    settings: EngineOptions,
    window: MaxInFlightPerKey,
    now: u64,
    machine: Machine,
    /// How far the reader of this machine has come.
    reader: (Option<Arc<Difference>>, i64, Mark),
    in_flight: VecDeque<Submission>,
    /// The pauses that operators have set, and those that the machine knows.
    paused: BTreeSet<PauseScope>,
    told: BTreeSet<PauseScope>,
    /// The message ids that operators have discarded.
    discarded: HashSet<String>,
    /// Whether every further message of this session fails.
    session_failed: bool,
    /// Topics and keys for which the broker does not answer.
    silent: HashSet<String>,
    asked: Asked,
    due_positions: [Option<DuePosition>; 2],
    /// The checkpoint that is on its way.
    storing: Option<Checkpoint>,
    healed: bool,
}

type MessageIdText = String;

pub(super) fn settings() -> EngineOptions {
    let silent_after = Duration::from_millis(300);
    let (unstored_max, checkpoint_changes) = (30, 8);
    let mut settings = EngineOptions {
        window_entries: 40,
        unstored_max,
        checkpoint_changes,
        silent_after,
        ..EngineOptions::default()
    };
    settings.attempts_max = 3;
    settings.size_limit.message_bytes_max = OVERSIZE;
    settings
}

/// Every second world has a window that is full by its bytes.
fn settings_of(seed: u64) -> EngineOptions {
    let window_bytes = if seed.is_multiple_of(2) { 10_000 } else { settings().window_bytes };
    EngineOptions { window_bytes, page_bytes: window_bytes / 3, page_entries: 11, ..settings() }
}

impl World {
    fn new(seed: u64, window: MaxInFlightPerKey) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut entries = Vec::new();
        let mut delays = HashMap::new();
        let (mut poison, mut hanging) = (HashSet::new(), HashSet::new());
        let keys = rng.random_range(1..6);
        for index in 0..rng.random_range(20..150) {
            let topic = TOPICS[if rng.random_bool(0.1) { 2 } else { rng.random_range(0..2) }];
            let mut message =
                Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), format!("{index}"));
            if rng.random_bool(0.8) {
                let key = format!("k{}", rng.random_range(0..keys));
                message = message.with_key(OrderingKey::new(key).unwrap());
            }
            if rng.random_bool(0.08) {
                delays.insert(index + 1, rng.random_range(1..2_000));
            }
            if rng.random_bool(0.03) {
                message.payload = vec![b'x'; OVERSIZE].into();
            }
            if rng.random_bool(0.05) {
                poison.insert(message.id.to_string());
            }
            if rng.random_bool(0.03) {
                hanging.insert(message.id.to_string());
            }
            entries.push(message);
        }
        let cursor = Cursor::at(Mark::new("0"));
        let log = Log { entries, delays, cursor: cursor.clone(), rows: BTreeMap::new() };
        let settings = settings_of(seed);
        let machine = Machine::new(settings.clone(), cursor.clone(), Blocks::default());
        Self {
            settings,
            rng,
            log,
            broker: Vec::new(),
            poison,
            hanging,
            hangs_for_ever: false,
            missing: true,
            window,
            now: 0,
            machine,
            reader: (None, 0, cursor.base),
            in_flight: VecDeque::new(),
            session_failed: false,
            silent: HashSet::new(),
            paused: BTreeSet::new(),
            told: BTreeSet::new(),
            discarded: HashSet::new(),
            asked: Asked::Nothing,
            due_positions: [None; 2],
            storing: None,
            healed: false,
        }
    }

    fn connect(&mut self) {
        self.in_flight.clear();
        self.session_failed = false;
        self.machine.session_started(self.window);
    }

    /// Crashes or is taken over: only the contents of the database survive.
    fn take_over(&mut self) {
        let mut blocks = self.log.blocks();
        self.told = self.paused.clone();
        blocks.set_paused(Paused::of(self.told.clone()));
        self.machine = Machine::new(self.settings.clone(), self.log.cursor.clone(), blocks);
        self.reader = match self.log.cursor.open() {
            Some((difference, after)) => (Some(Arc::new(difference)), after.0, self.log.cursor.base.clone()),
            None => (None, 0, self.log.cursor.base.clone()),
        };
        self.asked = Asked::Nothing;
        self.due_positions = [None; 2];
        self.storing = None;
        self.connect();
    }

    fn read(&mut self) {
        if !self.machine.has_room() {
            return;
        }
        let (difference, after, base) = self.reader.clone();
        let total = self.log.entries.len() as i64;
        let difference = match difference {
            Some(difference) => difference,
            None => {
                let from: i64 = base.as_str().parse().unwrap();
                if from == total {
                    return;
                }
                let to = self.rng.random_range(from + 1..=total);
                let head = Mark::new(to.to_string());
                self.reader.1 = from;
                Arc::new(Difference { base, head, ceiling: to })
            }
        };
        let after = after.max(difference.base.as_str().parse().unwrap());
        let upto = (after + self.rng.random_range(1..12)).min(difference.ceiling);
        let entries = (after + 1..=upto).map(|id| {
            let ahead = self.log.delays.get(&id).and_then(|at| at.checked_sub(self.now)).filter(|ms| *ms > 0);
            self.log.entry(EntryId(id), ahead.map(Duration::from_millis))
        });
        let page = Page { entries: entries.collect(), exhausted: upto == difference.ceiling };
        self.reader = if page.exhausted {
            (None, 0, difference.head.clone())
        } else {
            (Some(Arc::clone(&difference)), upto, difference.base.clone())
        };
        self.machine.page(&difference, page);
    }

    fn outcome(&mut self, message: &Message) -> Result<(), PublishError> {
        if self.session_failed {
            return Err(PublishError::session_lost("the session failed before"));
        }
        if self.hanging.contains(&message.id.to_string()) && (self.hangs_for_ever || !self.healed) {
            return Err(PublishError::topic_busy("no answer in time").about_this_message());
        }
        if !self.healed {
            if self.poison.contains(&message.id.to_string()) {
                return Err(PublishError::refused("poison"));
            }
            if self.missing && message.topic.as_str() == "missing" {
                return Err(PublishError::topic_unavailable("no such topic"));
            }
            match self.rng.random_range(0..100) {
                0 => return Err(PublishError::session_lost("lost, not stored")),
                1 => {
                    self.broker.push(message.clone());
                    return Err(PublishError::session_lost("lost, but stored"));
                }
                2 => return Err(PublishError::topic_busy("queue full")),
                3 if self.window == MaxInFlightPerKey::One => {
                    return Err(PublishError::topic_busy("enough others wait").saturated());
                }
                4 => return Err(PublishError::topic_busy("come back").not_before(Duration::from_millis(40))),
                _ => {}
            }
        }
        self.broker.push(message.clone());
        Ok(())
    }

    fn answers(&self, submission: &Submission) -> bool {
        let message = &submission.message;
        let key = message.key.as_ref().is_some_and(|key| self.silent.contains(key.as_str()));
        !key && !self.silent.contains(message.topic.as_str())
    }

    /// Silences a topic, or a single key as if it had its own partition; or lets all of them answer
    /// again.
    fn toggle_silence(&mut self) {
        if self.healed || self.rng.random_bool(0.5) {
            self.silent.clear();
        } else {
            let name = ["orders", "payments", "k0", "k1", "k2"][self.rng.random_range(0..5)];
            self.silent.insert(name.to_owned());
        }
    }

    fn end_session(&mut self) {
        while let Some(silent) = self.in_flight.iter().position(|submission| !self.answers(submission)) {
            let Some(Submission { ticket, message }) = self.in_flight.remove(silent) else { return };
            match self.window {
                MaxInFlightPerKey::Pipelined => self.session_failed = true,
                MaxInFlightPerKey::One if self.rng.random_bool(0.5) => {
                    self.broker.push(Message::clone(&message));
                }
                MaxInFlightPerKey::One => {}
            }
            let outcome = Err(PublishError::session_lost("never answered"));
            self.machine.receipt(Receipt { ticket, outcome }, 0.5);
        }
        while !self.in_flight.is_empty() {
            self.receive();
        }
        self.connect();
    }

    fn receive(&mut self) {
        let mut waiting = HashSet::new();
        let mut answered = Vec::new();
        for (place, submission) in self.in_flight.iter().enumerate() {
            // A pipelined publisher keeps the order of a key, so messages behind a silent one are
            // silent as well.
            let behind = submission.message.key.as_ref().is_some_and(|key| waiting.contains(key));
            if self.answers(submission) && !(behind && self.window == MaxInFlightPerKey::Pipelined) {
                answered.push(place);
            } else {
                waiting.extend(submission.message.key.as_ref());
            }
        }
        let pick = match self.window {
            MaxInFlightPerKey::Pipelined => answered.first(),
            MaxInFlightPerKey::One => answered.get(self.rng.random_range(0..answered.len().max(1))),
        };
        let Some(pick) = pick.copied() else { return };
        let Some(submission) = self.in_flight.remove(pick) else { return };
        let outcome = self.outcome(&submission.message);
        let lost = outcome.as_ref().is_err_and(|error| error.scope() == FaultScope::Session);
        self.session_failed |= outcome.is_err() && (lost || self.window == MaxInFlightPerKey::Pipelined);
        let uniform = self.rng.random();
        self.machine.receipt(Receipt { ticket: submission.ticket, outcome }, uniform);
    }

    /// Advances a query by one step: it is sent, the database answers it, or the answer arrives.
    fn ask(&mut self) {
        let len = self.rng.random_range(1..8);
        self.asked = match std::mem::replace(&mut self.asked, Asked::Nothing) {
            Asked::Nothing => {
                self.machine.asks();
                let kind = if self.rng.random() { DueKind::Scheduled } else { DueKind::Retrying };
                match self.rng.random_range(0..5) {
                    0 if self.machine.has_room_for_held() => Asked::Held(self.machine.held_asks()),
                    1 | 2 if self.machine.has_room_for_due(kind) => {
                        Asked::Due(kind, self.due_positions[kind as usize])
                    }
                    3 => Asked::Pauses,
                    _ => self.machine.wanted_names().map_or(Asked::Nothing, Asked::Names),
                }
            }
            Asked::Due(kind, after) => Asked::DueAnswer(kind, self.log.due(kind, self.now, after, len)),
            Asked::Held(asks) => {
                let pages = asks.iter().map(|ask| self.log.held_page(ask, len)).collect();
                Asked::HeldAnswer(asks, pages)
            }
            Asked::Names(after) => Asked::NamesAnswer(self.log.queues(after.as_ref(), len)),
            Asked::Pauses => Asked::PausesAnswer(self.paused.clone()),
            Asked::PausesAnswer(paused) => {
                self.machine.pauses(Paused::of(paused.clone()));
                self.told = paused;
                Asked::Nothing
            }
            Asked::DueAnswer(kind, page) => {
                self.due_positions[kind as usize] = page.position.filter(|_| !page.exhausted);
                self.machine.due(page.exceptions, 0.5);
                Asked::Nothing
            }
            Asked::HeldAnswer(asks, pages) => {
                self.machine.held(&asks, pages);
                Asked::Nothing
            }
            Asked::NamesAnswer(names) => {
                self.machine.names(names);
                Asked::Nothing
            }
        };
    }

    /// Advances a checkpoint by one step: it is sent, or it is stored and reported as stored.
    fn store(&mut self) {
        match self.storing.take() {
            None => {
                self.storing = self.machine.checkpoint();
                // It may be stored at once, or still be on its way when the process dies.
                if self.rng.random() {
                    self.store();
                }
            }
            Some(checkpoint) => {
                self.log.store(checkpoint, self.now);
                self.machine.checkpointed();
            }
        }
    }

    fn step(&mut self) {
        self.now += self.rng.random_range(0..20);
        self.machine.set_now(Duration::from_millis(self.now));
        self.machine.give_way();
        if self.rng.random_bool(0.1) {
            self.machine.make_room();
        }
        match self.rng.random_range(0..100) {
            0..25 => self.read(),
            25..45 => {
                let len = self.rng.random_range(1..20);
                let batch = self.machine.submissions(len);
                self.check_pauses(&batch);
                self.check_discarded(&batch);
                self.in_flight.extend(batch);
            }
            45..75 => self.receive(),
            75..83 => self.store(),
            83..95 => self.ask(),
            95 if self.rng.random_bool(0.5) => self.toggle_silence(),
            96 if self.rng.random_bool(0.7) => {
                let uniform = self.rng.random();
                self.machine.look_for_silence(uniform);
            }
            96 if !self.healed && self.rng.random_bool(0.2) => self.take_over(),
            97 if !self.healed && self.rng.random_bool(0.5) => self.toggle_pause(),
            98 if !self.healed && self.rng.random_bool(0.5) => self.discard(),
            _ => {
                if self.machine.session_end().is_some() {
                    self.end_session();
                }
            }
        }
        let _ = self.machine.take_events();
        self.check_publisher();
        if self.rng.random_bool(0.1) {
            self.check_rest();
            self.check_probes();
            self.check_silent();
        }
    }

    /// Pauses or resumes something, as an operator does. The machine finds out when it asks.
    fn toggle_pause(&mut self) {
        let scope = match self.rng.random_range(0..7) {
            0 => PauseScope::Pipeline,
            1 => PauseScope::Topic(TOPICS[self.rng.random_range(0..3)].to_owned()),
            2 => PauseScope::Topic(TOPICS[0].to_owned()),
            key => PauseScope::Key(format!("k{}", key - 3)),
        };
        if !self.paused.remove(&scope) {
            self.paused.insert(scope);
        }
    }

    /// Discards a message that is retried, as an operator does. The machine finds out when it reads
    /// what is due.
    fn discard(&mut self) {
        let mut parked: Vec<_> = self.log.rows.keys().copied().collect();
        let first = self.rng.random_range(0..=parked.len());
        parked.rotate_left(first);
        if let Some(id) = parked.into_iter().find(|id| self.log.discard(*id, self.now)) {
            self.discarded.insert(self.log.entry(id, None).message_id());
        }
    }

    /// Repairs everything: topics exist, poison is edited, dead entries are requeued by an
    /// operator.
    fn heal(&mut self) {
        self.healed = true;
        self.silent.clear();
        self.paused.clear();
        let dead = |row: &Row| row.parked.state == ExceptionState::Dead;
        let ids: Vec<_> = self.log.rows.iter().filter(|(_, row)| dead(row)).map(|(id, _)| *id).collect();
        for id in ids {
            self.log.edit(id);
            if let Some(row) = self.log.rows.get_mut(&id) {
                row.parked.state = ExceptionState::Retrying;
                row.due_at = Some(0);
            }
        }
    }

    /// Repairs everything but the messages on which the broker hangs.
    fn heal_all_but_hanging(&mut self) {
        self.hangs_for_ever = true;
        for id in 1..=self.log.entries.len() as i64 {
            self.log.edit(EntryId(id));
        }
        self.heal();
    }

    fn is_quiet(&self) -> bool {
        let end = Cursor::at(Mark::new(self.log.entries.len().to_string()));
        self.machine.open_len() == 0 && self.log.cursor == end && self.log.rows.is_empty()
    }
}

fn run(seed: u64, window: MaxInFlightPerKey) {
    let mut world = World::new(seed, window);
    world.connect();
    for _ in 0..1_500 {
        world.step();
    }
    for _ in 0..200_000 {
        if world.is_quiet() {
            break;
        }
        world.heal();
        world.now += 50;
        world.step();
    }
    assert!(
        world.is_quiet(),
        "seed {seed}: not quiet: {} open, {} rows",
        world.machine.open_len(),
        world.log.rows.len()
    );
    world.check(seed);
}

/// Goal: messages on which the broker hangs delay nothing but their keys. Oracle: everything that
/// is not one of them or behind one of its key is at the broker, while none of them ever leaves.
fn run_with_hanging(seed: u64, window: MaxInFlightPerKey) {
    let mut world = World::new(seed, window);
    world.heal_all_but_hanging();
    world.connect();
    for step in 0..60_000 {
        if step % 100 == 0 && world.left_behind() == 0 {
            break;
        }
        world.now += 50;
        world.step();
    }
    assert_eq!(world.left_behind(), 0, "seed {seed}: {} hang", world.hanging.len());
    world.hangs_for_ever = false;
    for _ in 0..200_000 {
        if world.is_quiet() {
            break;
        }
        world.now += 50;
        world.step();
    }
    assert!(world.is_quiet(), "seed {seed}: not quiet");
    world.check(seed);
}

#[test]
fn messages_on_which_the_broker_hangs_delay_only_their_keys() {
    (0..200).for_each(|seed| run_with_hanging(seed, MaxInFlightPerKey::One));
    (0..50).for_each(|seed| run_with_hanging(seed, MaxInFlightPerKey::Pipelined));
}

#[test]
fn nothing_is_lost_and_order_holds_with_one_message_per_key() {
    (0..600).for_each(|seed| run(seed, MaxInFlightPerKey::One));
}

#[test]
fn nothing_is_lost_and_order_holds_with_a_pipelined_publisher() {
    (0..600).for_each(|seed| run(seed, MaxInFlightPerKey::Pipelined));
}
