//! The machine under thousands of random schedules: a model of log, exceptions and broker, faults everywhere.
//!
//! The oracle is independent of the machine: at the end, with all faults healed, every entry is in the broker,
//! and the first occurrences of each key are in log order.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use message::{EventType, KeyWindow, Message, OrderingKey, PublishError, Receipt, Scope, Submission, Topic};
use outbox::log::{
    Cursor, Difference, DuePage, DuePosition, Entry, EntryId, Exception, ExceptionChange, ExceptionState,
    ExceptionSummary, HeldAsk, HeldPage, HeldQueue, HeldQueues, Mark, Page, Parked, QueueName,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::engine::held::QueueHash;
use crate::engine::settings::DeadPolicy;

const TOPICS: [&str; 3] = ["orders", "payments", "missing"];

/// More bytes than the destination takes.
const OVERSIZE: usize = 2_000;

pub(super) struct Row {
    parked: Parked,
    due_at: Option<u64>,
}

/// What the database holds.
pub(super) struct Log {
    pub(super) entries: Vec<Message>,
    pub(super) delays: HashMap<i64, u64>,
    pub(super) cursor: Cursor,
    pub(super) rows: BTreeMap<EntryId, Row>,
}

impl Log {
    fn entry(&self, id: EntryId, deliver_in: Option<Duration>) -> Entry {
        let index = usize::try_from(id.0 - 1).unwrap();
        Entry { id, message: Ok(self.entries[index].clone()), deliver_in }
    }

    /// An operator shortens what was dead because it was too large.
    fn edit(&mut self, id: EntryId) {
        let index = usize::try_from(id.0 - 1).unwrap();
        self.entries[index].payload.truncate(10);
    }

    pub(super) fn store(&mut self, checkpoint: Checkpoint, now: u64) {
        self.cursor = checkpoint.cursor;
        for change in checkpoint.changes {
            match change {
                ExceptionChange::Resolve(id) => _ = self.rows.remove(&id),
                ExceptionChange::Park(parked) => {
                    let due_at = parked.due_in.map(|due_in| now + due_in.as_millis() as u64);
                    self.rows.insert(parked.id, Row { parked, due_at });
                }
            }
        }
    }

    fn read(&self, id: EntryId, row: &Row) -> Exception {
        let entry = self.entry(id, None);
        Exception { entry, state: row.parked.state, attempts: row.parked.attempts }
    }

    fn is_timed(row: &Row) -> bool {
        matches!(row.parked.state, ExceptionState::Scheduled | ExceptionState::Retrying)
    }

    /// A page of what is due; the places are milliseconds.
    fn due(&self, now: u64, after: Option<DuePosition>, len: usize) -> DuePage {
        let place = |(id, row): (&EntryId, &Row)| {
            let at_micros = i64::try_from(row.due_at.filter(|at| *at <= now)?).unwrap();
            Some(DuePosition { at_micros, id: *id }).filter(|place| after.is_none_or(|after| *place > after))
        };
        let timed = self.rows.iter().filter(|(_, row)| Self::is_timed(row));
        let mut places: Vec<_> = timed.filter_map(place).collect();
        places.sort_unstable();
        let exhausted = places.len() <= len;
        places.truncate(len);
        DuePage {
            exceptions: places.iter().map(|place| self.read(place.id, &self.rows[&place.id])).collect(),
            position: places.last().copied().or(after),
            exhausted,
            next_in: None,
        }
    }

    fn held(&self) -> impl Iterator<Item = (QueueName, EntryId, &Row)> {
        let held = self.rows.iter().filter(|(_, row)| row.parked.state == ExceptionState::Held);
        held.map(|(id, row)| (QueueName::of(&row.parked.topic, row.parked.key.as_deref()), *id, row))
    }

    pub(super) fn held_page(&self, ask: &HeldAsk, len: usize) -> HeldPage {
        let mut found = self.held().filter(|(queue, id, _)| *queue == ask.queue && *id >= ask.from);
        let exceptions = found.by_ref().take(len).map(|(_, id, row)| self.read(id, row)).collect();
        HeldPage { exceptions, exhausted: found.next().is_none() }
    }

    pub(super) fn queues(&self, after: Option<&QueueName>, len: usize) -> HeldQueues {
        let mut all: BTreeMap<QueueName, (EntryId, &Row)> = BTreeMap::new();
        for (queue, id, row) in self.held().filter(|(queue, ..)| after.is_none_or(|after| queue > after)) {
            all.entry(queue).or_insert((id, row));
        }
        let exhausted = all.len() <= len;
        let queue = |(name, (first, row)): (QueueName, (EntryId, &Row))| HeldQueue {
            name,
            first,
            topic: row.parked.topic.clone(),
        };
        HeldQueues { queues: all.into_iter().take(len).map(queue).collect(), exhausted }
    }

    fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for (id, row) in &self.rows {
            let (key, state) = (row.parked.key.clone(), row.parked.state);
            blocks.load(&ExceptionSummary { id: *id, key, state }, DeadPolicy::Hold);
        }
        self.queues(None, usize::MAX).queues.iter().for_each(|queue| blocks.load_queue(queue));
        blocks
    }
}

/// A question that is on its way, and then its answer.
enum Asked {
    Nothing,
    Due(Option<DuePosition>),
    Held(Vec<HeldAsk>),
    Names(Option<QueueName>),
    DueAnswer(DuePage),
    HeldAnswer(Vec<HeldAsk>, Vec<HeldPage>),
    NamesAnswer(HeldQueues),
}

struct World {
    rng: SmallRng,
    log: Log,
    broker: Vec<Message>,
    poison: HashSet<MessageIdText>,
    missing: bool,
    window: KeyWindow,
    now: u64,
    machine: Machine,
    /// How far the reader of this machine has come.
    reader: (Option<Arc<Difference>>, i64, Mark),
    in_flight: VecDeque<Submission>,
    /// Pipelined: nothing of this session may succeed any more.
    session_failed: bool,
    /// Topics and keys for which the broker does not answer.
    silent: HashSet<String>,
    asked: Asked,
    due_position: Option<DuePosition>,
    /// A checkpoint is on its way.
    storing: Option<Checkpoint>,
    healed: bool,
}

type MessageIdText = String;

pub(super) fn settings() -> Settings {
    let silent_after = Duration::from_millis(300);
    let (unstored_max, checkpoint_changes) = (30, 8);
    let mut settings = Settings {
        window_entries: 40,
        unstored_max,
        checkpoint_changes,
        silent_after,
        ..Settings::default()
    };
    settings.retry.attempts_max = 3;
    settings.size_limit.message_bytes_max = OVERSIZE;
    settings
}

impl World {
    fn new(seed: u64, window: KeyWindow) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut entries = Vec::new();
        let mut delays = HashMap::new();
        let mut poison = HashSet::new();
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
            entries.push(message);
        }
        let cursor = Cursor::at(Mark::new("0"));
        let log = Log { entries, delays, cursor: cursor.clone(), rows: BTreeMap::new() };
        let machine = Machine::new(settings(), cursor.clone(), Blocks::default());
        Self {
            rng,
            log,
            broker: Vec::new(),
            poison,
            missing: true,
            window,
            now: 0,
            machine,
            reader: (None, 0, cursor.base),
            in_flight: VecDeque::new(),
            session_failed: false,
            silent: HashSet::new(),
            asked: Asked::Nothing,
            due_position: None,
            storing: None,
            healed: false,
        }
    }

    fn connect(&mut self) {
        self.in_flight.clear();
        self.session_failed = false;
        self.machine.session_started(self.window);
    }

    /// A crash or a takeover: only what the database holds survives.
    fn take_over(&mut self) {
        self.machine = Machine::new(settings(), self.log.cursor.clone(), self.log.blocks());
        self.reader = match self.log.cursor.open() {
            Some((difference, after)) => (Some(Arc::new(difference)), after.0, self.log.cursor.base.clone()),
            None => (None, 0, self.log.cursor.base.clone()),
        };
        self.asked = Asked::Nothing;
        self.due_position = None;
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

    /// A topic, or a key as if it had a partition to itself, falls silent; or all of them answer again.
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
                KeyWindow::Pipelined => self.session_failed = true,
                KeyWindow::One if self.rng.random_bool(0.5) => self.broker.push(Message::clone(&message)),
                KeyWindow::One => {}
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
            // A pipelined publisher keeps the order of a key, so what is behind a silent message is silent as well.
            let behind = submission.message.key.as_ref().is_some_and(|key| waiting.contains(key));
            if self.answers(submission) && !(behind && self.window == KeyWindow::Pipelined) {
                answered.push(place);
            } else {
                waiting.extend(submission.message.key.as_ref());
            }
        }
        let pick = match self.window {
            KeyWindow::Pipelined => answered.first(),
            KeyWindow::One => answered.get(self.rng.random_range(0..answered.len().max(1))),
        };
        let Some(pick) = pick.copied() else { return };
        let Some(submission) = self.in_flight.remove(pick) else { return };
        let outcome = self.outcome(&submission.message);
        let lost = outcome.as_ref().is_err_and(|error| error.scope() == Scope::Session);
        self.session_failed |= outcome.is_err() && (lost || self.window == KeyWindow::Pipelined);
        let uniform = self.rng.random();
        self.machine.receipt(Receipt { ticket: submission.ticket, outcome }, uniform);
    }

    /// A question leaves, is answered by the database, or its answer comes: each at some time of its own.
    fn ask(&mut self) {
        let len = self.rng.random_range(1..8);
        self.asked = match std::mem::replace(&mut self.asked, Asked::Nothing) {
            Asked::Nothing => {
                self.machine.asks();
                match self.rng.random_range(0..3) {
                    0 if self.machine.has_room_for_held() => Asked::Held(self.machine.held_asks()),
                    1 if self.machine.has_room_for_exceptions() => Asked::Due(self.due_position),
                    _ => self.machine.wanted_names().map_or(Asked::Nothing, Asked::Names),
                }
            }
            Asked::Due(after) => Asked::DueAnswer(self.log.due(self.now, after, len)),
            Asked::Held(asks) => {
                let pages = asks.iter().map(|ask| self.log.held_page(ask, len)).collect();
                Asked::HeldAnswer(asks, pages)
            }
            Asked::Names(after) => Asked::NamesAnswer(self.log.queues(after.as_ref(), len)),
            Asked::DueAnswer(page) => {
                self.due_position = page.position.filter(|_| !page.exhausted);
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

    /// A checkpoint leaves, is stored, or the word of it comes.
    fn store(&mut self) {
        match self.storing.take() {
            None => {
                self.storing = self.machine.checkpoint();
                // It may be stored at once, or on the way when the process dies.
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
        match self.rng.random_range(0..100) {
            0..25 => self.read(),
            25..45 => {
                let len = self.rng.random_range(1..20);
                let batch = self.machine.submissions(len);
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
            _ => {
                if self.machine.session_end().is_some() {
                    self.end_session();
                }
            }
        }
        let _ = self.machine.take_events();
        if self.rng.random_bool(0.1) {
            self.check_rest();
            self.check_probes();
        }
    }

    /// A topic is blocked only while one of its entries is going to be retried.
    fn check_probes(&self) {
        let is_kept = |topic: &str| self.machine.kept_blocked.contains(topic);
        for (topic, id) in self.machine.blocks.probes().filter(|(topic, _)| !is_kept(topic)) {
            let change = self.machine.changes.get(id).or_else(|| self.machine.storing.get(id));
            let state = match change {
                Some(ExceptionChange::Park(parked)) => Some(parked.state),
                Some(ExceptionChange::Resolve(_)) => None,
                None => self.log.rows.get(id).map(|row| row.parked.state),
            };
            let is_retried = self.machine.aside.contains(id) || state == Some(ExceptionState::Retrying);
            assert!(is_retried, "entry {} is {state:?}, and topic {topic} waits for it", id.0);
        }
    }

    /// A queue rests only while something stops its first entry that has not been read back.
    fn check_rest(&self) {
        let idle = self.machine.blocks.idle();
        if idle.is_empty() {
            return;
        }
        let held = self.log.held().map(|(_, id, row)| (id, row.parked.clone()));
        let mut held: BTreeMap<EntryId, Parked> = held.collect();
        for (id, change) in self.machine.storing.iter().chain(&self.machine.changes) {
            match change {
                ExceptionChange::Park(parked) if parked.state == ExceptionState::Held => {
                    held.insert(*id, parked.clone());
                }
                _ => _ = held.remove(id),
            }
        }
        for (queue, from) in idle {
            let is_next = |(id, row): &(&EntryId, &Parked)| {
                **id >= from && QueueHash::of(&row.topic, row.key.as_deref()) == queue
            };
            let next = held.iter().find(is_next);
            let is_stopped =
                next.is_some_and(|(id, row)| self.machine.blocks.keeps(&row.topic, row.key.as_deref(), *id));
            assert!(is_stopped, "nothing stops {next:?}, and nothing releases its queue from {} on", from.0);
        }
    }

    /// Repairs everything: topics exist, poison is edited, dead entries are requeued by an operator.
    fn heal(&mut self) {
        self.healed = true;
        self.silent.clear();
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

    fn is_quiet(&self) -> bool {
        let end = Cursor::at(Mark::new(self.log.entries.len().to_string()));
        self.machine.open_len() == 0 && self.log.cursor == end && self.log.rows.is_empty()
    }

    fn check(&self, seed: u64) {
        let published: HashSet<_> = self.broker.iter().map(|message| message.id).collect();
        let lost = self.log.entries.iter().filter(|message| !published.contains(&message.id)).count();
        assert_eq!(lost, 0, "seed {seed}: entries were lost");
        let mut seen = HashSet::new();
        let mut last: HashMap<&OrderingKey, usize> = HashMap::new();
        for message in self.broker.iter().filter(|message| seen.insert(message.id)) {
            let Some(key) = &message.key else { continue };
            let place = self.log.entries.iter().position(|entry| entry.id == message.id).unwrap();
            // A scheduled one takes its place when it is due.
            if self.log.delays.contains_key(&(place as i64 + 1)) {
                continue;
            }
            if let Some(before) = last.insert(key, place) {
                assert!(before < place, "seed {seed}: key {key}: entry {place} after entry {before}");
            }
        }
    }
}

fn run(seed: u64, window: KeyWindow) {
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

#[test]
fn nothing_is_lost_and_order_holds_with_one_message_per_key() {
    (0..600).for_each(|seed| run(seed, KeyWindow::One));
}

#[test]
fn nothing_is_lost_and_order_holds_with_a_pipelined_publisher() {
    (0..600).for_each(|seed| run(seed, KeyWindow::Pipelined));
}

pub(super) fn message_for(topic: &str, key: &str) -> Message {
    Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "x")
        .with_key(OrderingKey::new(key).unwrap())
}

/// A machine with a session, time and entries of its own.
pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) last: i64,
}

impl Bench {
    pub(super) fn new(window: KeyWindow) -> Self {
        let mut machine = Machine::new(settings(), Cursor::at(Mark::new("0")), Blocks::default());
        machine.session_started(window);
        Self { machine, last: 0 }
    }

    pub(super) fn read(&mut self, message: &Message) {
        let mark = |id: i64| Mark::new(id.to_string());
        let (base, head) = (mark(self.last), mark(self.last + 1));
        self.last += 1;
        let difference = Arc::new(Difference { base, head, ceiling: self.last });
        let entry = Entry { id: EntryId(self.last), message: Ok(message.clone()), deliver_in: None };
        self.machine.page(&difference, Page { entries: vec![entry], exhausted: true });
    }

    /// Asks for held entries, of which the database has these.
    pub(super) fn read_back(&mut self, held: &[Exception]) {
        self.machine.asks();
        let asks = self.machine.held_asks();
        let page = |ask: &HeldAsk| {
            let is_of = |entry: &Entry| {
                QueueName::of(entry.topic(), entry.key()) == ask.queue && entry.id >= ask.from
            };
            let exceptions = held.iter().filter(|held| is_of(&held.entry)).cloned().collect();
            HeldPage { exceptions, exhausted: true }
        };
        let pages = asks.iter().map(page).collect();
        self.machine.held(&asks, pages);
    }

    /// A message of another topic is answered late enough that what was submitted at first counts as silent.
    pub(super) fn only_others_are_answered(&mut self) {
        self.at(290);
        self.publish("u", "other");
        self.at(300);
        self.machine.look_for_silence(0.5);
    }

    /// A message is read, submitted and confirmed.
    pub(super) fn publish(&mut self, topic: &str, key: &str) {
        self.read(&message_for(topic, key));
        let ticket = self.machine.submissions(9)[0].ticket;
        self.confirm(ticket);
    }

    pub(super) fn at(&mut self, ms: u64) {
        self.machine.set_now(Duration::from_millis(ms));
    }

    pub(super) fn confirm(&mut self, ticket: message::Ticket) {
        self.machine.receipt(Receipt { ticket, outcome: Ok(()) }, 0.5);
    }

    pub(super) fn cursor(&mut self) -> Cursor {
        let cursor = self.machine.checkpoint().map(|checkpoint| checkpoint.cursor);
        self.machine.checkpointed();
        cursor.unwrap_or_else(|| self.machine.stored.clone())
    }
}

pub(super) fn exception(id: i64, message: &Message, state: ExceptionState) -> Exception {
    let entry = Entry { id: EntryId(id), message: Ok(message.clone()), deliver_in: None };
    Exception { entry, state, attempts: 0 }
}

#[test]
fn a_silent_topic_leaves_the_window_and_its_late_receipts_settle_it_without_copies() {
    let mut bench = Bench::new(KeyWindow::One);
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
    assert_eq!((bench.machine.in_flight_len(), bench.machine.awaited_len()), (0, 2));
    assert_eq!(bench.machine.blocked().1, 1, "its topic waits");
    assert_eq!(bench.cursor(), Cursor::at(Mark::new("3")), "the cursor passes");
    bench.machine.due(vec![exception(1, &first, ExceptionState::Retrying)], 0.5);
    bench.read_back(&[exception(2, &second, ExceptionState::Held)]);
    assert!(bench.machine.submissions(9).is_empty(), "no copies: both are with the publisher");
    bench.confirm(silent[0]);
    bench.confirm(silent[1]);
    bench.read_back(&[]);
    assert_eq!(bench.machine.blocked(), (0, 0));
    let checkpoint = bench.machine.checkpoint().unwrap();
    assert!(checkpoint.changes.iter().all(|change| matches!(change, ExceptionChange::Resolve(_))));
    bench.read(&first);
    assert_eq!(bench.machine.submissions(9).len(), 1, "the topic flows again");
}

#[test]
fn a_silent_part_of_a_topic_holds_its_keys_and_no_others() {
    let mut bench = Bench::new(KeyWindow::Pipelined);
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
    assert_eq!(bench.machine.awaited_len(), 2);
    assert_eq!(bench.machine.blocked(), (1, 0), "one key waits, the topic does not");
    bench.read(&silent);
    bench.read(&alive);
    let next = bench.machine.submissions(9);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].message.key, alive.key);
    assert!(bench.machine.session_end().is_none());
    // The session ends: what was waited for is submitted again, in order.
    let lost = || Err(PublishError::session_lost("gone"));
    bench.machine.receipt(Receipt { ticket: tickets[0], outcome: lost() }, 0.5);
    bench.machine.receipt(Receipt { ticket: tickets[1], outcome: lost() }, 0.5);
    bench.machine.session_started(KeyWindow::Pipelined);
    assert!(bench.machine.checkpoint().is_some());
    bench.machine.checkpointed();
    bench.read_back(&[exception(2, &silent, ExceptionState::Held)]);
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    let again = bench.machine.submissions(9);
    assert_eq!(again.iter().filter(|s| s.message.key == silent.key).count(), 1, "the second one waits");
}

#[test]
fn an_outage_of_everything_sets_nothing_aside() {
    let mut bench = Bench::new(KeyWindow::One);
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
    let settings = Settings { unstored_max: 2, ..settings() };
    let machine = Machine::new(settings, Cursor::at(Mark::new("0")), Blocks::default());
    let mut bench = Bench { machine, last: 0 };
    bench.machine.session_started(KeyWindow::One);
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

/// What is held for a queue while its page is on the way can be its first entry, and stand before what stops the page.
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
    assert_eq!(blocks.asks()[0].from, id(4));
    blocks.hold("t", Some("k"), id(2));
    assert!(!blocks.held.answered(queue, id(4)), "entry 2 stands before the place of the question");
    assert!(blocks.has_before(Some("k"), id(5)) && blocks.asks().is_empty(), "entry 2 is not stored");
    blocks.held.stored(&name, id(2));
    assert_eq!(blocks.asks()[0].from, id(2));
}

/// Of a key that is waited for nothing is submitted, whatever its id: the other one could overtake it.
#[test]
fn an_entry_before_a_silent_one_of_its_key_waits_for_its_answer() {
    let mut bench = Bench::new(KeyWindow::One);
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
    assert_eq!(bench.machine.awaited_len(), 1);
    assert!(bench.machine.submissions(9).is_empty(), "entry 1 waits for the answer about entry 2");
    bench.cursor();
    bench.confirm(ticket);
    bench.read_back(&[exception(1, &message_for("v", "a"), ExceptionState::Held)]);
    assert_eq!(bench.machine.submissions(9).len(), 1);
}

/// Its probe was answered while so many others were waited for that it stayed blocked: nobody else would find out.
#[test]
fn a_topic_that_stays_blocked_without_a_probe_is_free_with_the_next_session() {
    let mut bench = Bench::new(KeyWindow::One);
    let half = settings().window_entries / 2;
    for number in 0..=half {
        bench.read(&message_for("t", &format!("k{number}")));
    }
    let silent = bench.machine.submissions(99);
    bench.only_others_are_answered();
    assert_eq!(bench.machine.awaited_len(), half + 1);
    bench.confirm(silent[0].ticket);
    assert_eq!(bench.machine.blocked().1, 1, "too much is waited for");
    bench.machine.session_started(KeyWindow::One);
    assert_eq!(bench.machine.blocked().1, 0);
}

/// Topic `t` is silent for its first message, `u` is not.
fn with_a_silent_topic() -> (Bench, Message, message::Ticket) {
    let mut bench = Bench::new(KeyWindow::Pipelined);
    let silent = message_for("t", "a");
    bench.read(&silent);
    let ticket = bench.machine.submissions(9)[0].ticket;
    bench.only_others_are_answered();
    assert_eq!(bench.machine.blocked().1, 1);
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
    assert_eq!(bench.machine.blocked(), (1, 0), "its key waits, its topic does not");
    bench.read(&alive);
    bench.read(&silent);
    let next = bench.machine.submissions(9);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].message.key, alive.key);
    // That one is silent as well: it probes, and lets others try when it has waited for long.
    bench.at(310);
    bench.read(&message_for("u", "c"));
    let others = bench.machine.submissions(9);
    bench.at(370);
    bench.confirm(others[0].ticket);
    bench.machine.look_for_silence(0.5);
    assert_eq!(bench.machine.blocked().1, 1);
    bench.cursor();
    bench.machine.due(vec![exception(3, &alive, ExceptionState::Retrying)], 0.5);
    assert_eq!(bench.machine.blocked().1, 1, "not for long enough");
    bench.cursor();
    bench.at(600);
    bench.machine.due(vec![exception(3, &alive, ExceptionState::Retrying)], 0.5);
    assert_eq!(bench.machine.blocked().1, 0);
}

#[test]
fn an_entry_that_is_waited_for_is_put_off_for_long_and_without_a_word() {
    let (mut bench, silent, ticket) = with_a_silent_topic();
    let delay_max = settings().retry.delay_max;
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    let told = bench.machine.take_events();
    assert!(told.iter().all(|event| !matches!(event, Event::Parked(_))));
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(delay_max))]);
    let lost = PublishError::session_lost("gone");
    bench.machine.receipt(Receipt { ticket, outcome: Err(lost) }, 0.5);
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(Duration::ZERO))], "its receipt makes it due");
}

#[test]
fn the_end_of_a_session_makes_due_what_was_put_off_and_a_late_receipt_settles_it() {
    let (mut bench, silent, _) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.machine.session_started(KeyWindow::Pipelined);
    assert_eq!(stored(&mut bench), [(EntryId(1), Some(Duration::ZERO))]);
    let (mut bench, silent, late) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.confirm(late);
    bench.machine.session_started(KeyWindow::Pipelined);
    assert!(stored(&mut bench).is_empty(), "it is published");
    // An operator discards one meanwhile: nothing brings it back.
    let (mut bench, silent, _) = with_a_silent_topic();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Retrying)], 0.5);
    bench.cursor();
    bench.machine.due(vec![exception(1, &silent, ExceptionState::Discarded)], 0.5);
    bench.machine.session_started(KeyWindow::Pipelined);
    assert!(stored(&mut bench).is_empty());
}

#[test]
fn one_by_one_a_silent_topic_lets_other_topics_try_after_a_while() {
    let mut bench = Bench::new(KeyWindow::Pipelined);
    for (topic, key) in [("t", "a"), ("t", "b"), ("u", "a"), ("u", "c"), ("v", "d")] {
        bench.read(&message_for(topic, key));
    }
    for _ in 0..3 {
        let ticket = bench.machine.submissions(9)[0].ticket;
        let lost = PublishError::session_lost("gone");
        bench.machine.receipt(Receipt { ticket, outcome: Err(lost) }, 0.5);
        bench.machine.session_started(KeyWindow::Pipelined);
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
    assert_eq!(bench.machine.awaited_len(), 2, "it is known which topic is silent");
}

/// Its retries end one session after another, and each of them is due again before the next session is open.
#[test]
fn retries_of_a_missing_topic_do_not_keep_other_topics_from_leaving() {
    let mut bench = Bench::new(KeyWindow::Pipelined);
    let (missing, also_missing) = (message_for("missing", "a"), message_for("missing", "b"));
    bench.read(&missing);
    bench.read(&also_missing);
    // A pipelined publisher turns away what comes behind a failure.
    let refuse = |bench: &mut Bench| {
        let mut error = PublishError::topic_unavailable("no such topic");
        let batch = bench.machine.submissions(9);
        let topics: Vec<String> = batch.iter().map(|one| one.message.topic.to_string()).collect();
        for Submission { ticket, .. } in batch {
            bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
            error = PublishError::session_lost("an earlier message failed");
        }
        bench.machine.session_started(KeyWindow::Pipelined);
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
    bench.machine.session_started(KeyWindow::Pipelined);
    let batch = bench.machine.submissions(9);
    let topics: Vec<&str> = batch.iter().map(|one| one.message.topic.as_str()).collect();
    assert_eq!(topics, ["orders", "orders", "missing"], "nobody waits for the retry, and none goes alone");
}

#[test]
fn a_topic_that_is_missing_is_retried_by_one_of_its_messages() {
    let mut bench = Bench::new(KeyWindow::One);
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
    // Whoever led before had two messages that were both retried.
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
    assert_eq!(bench.machine.blocked().1, 0);
    let name = QueueName::of("missing", Some("b"));
    let queue = HeldQueue { name, first: EntryId(2), topic: "missing".into() };
    bench.machine.names(HeldQueues { queues: vec![queue], exhausted: true });
    bench.read_back(&[exception(2, &second, ExceptionState::Held)]);
    assert_eq!(bench.machine.submissions(9).len(), 1, "the topic is there, and it leaves");
}

/// A log of two entries of one key, the second of which commits first.
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
    machine.session_started(KeyWindow::One);
    machine.page(&difference("0", "1", 2), page(2, &early));
    let ticket = machine.submissions(9)[0].ticket;
    machine.receipt(Receipt { ticket, outcome: Err(PublishError::topic_busy("queue full")) }, 0.5);
    machine.page(&difference("1", "2", 1), page(1, &late));
    assert!(machine.checkpoint().is_some());
    machine.checkpointed();
    // The entry that probes the topic is due, and waits for the late one, which its topic holds.
    machine.due(vec![exception(2, &early, ExceptionState::Retrying)], 0.5);
    let name = QueueName::of("orders", Some("k"));
    let queue = HeldQueue { name, first: EntryId(1), topic: "orders".into() };
    machine.names(HeldQueues { queues: vec![queue], exhausted: true });
    let asks = machine.held_asks();
    assert_eq!(asks.iter().map(|ask| ask.from).collect::<Vec<_>>(), [EntryId(1)], "the late entry can leave");
    let exceptions = vec![exception(1, &late, ExceptionState::Held)];
    machine.held(&asks, vec![HeldPage { exceptions, exhausted: true }]);
    let ticket = machine.submissions(9)[0].ticket;
    machine.receipt(Receipt { ticket, outcome: Ok(()) }, 0.5);
    machine.due(vec![exception(2, &early, ExceptionState::Retrying)], 0.5);
    assert_eq!(machine.submissions(9).len(), 1, "and then the one that waited for it");
}
