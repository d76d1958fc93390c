//! Random sequences of events for all parts that decide what a member reads: the real [`Reading`],
//! [`Ahead`] and [`Ledger`], on a model of librdkafka and of the group. Partitions come and go
//! while the consumer is fast, slow or stopped. In the end every message was handled, and the
//! member never prefetched more than fits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use message::{Delivery, DeliveryToken, Malformed};

use super::super::ahead::Ahead;
use super::super::ledger::{Ledger, Place};
use super::super::reading::{Next, Reading};

const PARTITIONS: i32 = 4;
const PREFETCH_LEN: usize = 6;
const COURSES: u64 = 2_000;
const EVENTS: usize = 120;
/// Maximum iterations until everything is quiet, once the consumer takes everything.
const QUIET_TURNS: usize = 200;
/// Empty polls in a row after which the queue counts as empty.
const EMPTY_MAX: usize = 16;

/// A part of the adapter that a test disables on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Omission {
    Nothing,
    /// A partition revoked during a pause is not resumed.
    ResumeBeforeRevoke,
    /// A partition assigned during a pause is not paused.
    PauseAfterAssign,
    /// No seek follows a released delivery.
    SeekAfterRelease,
}

/// Random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// Returns a random subset of the partitions.
    fn partitions(&mut self) -> Vec<i32> {
        let mask = self.below(1 << PARTITIONS);
        (0..PARTITIONS).filter(|partition| mask & (1 << partition) != 0).collect()
    }
}

/// An entry of the consumer's queue.
enum Queued {
    Message { partition: i32, offset: i64, version: u64 },
    Assign(Vec<i32>),
    Revoke { partitions: Vec<i32>, is_lost: bool },
}

/// A partition as librdkafka sees it.
#[derive(Debug, Default, Clone, Copy)]
struct Fetch {
    /// The next message to fetch.
    position: i64,
    /// The next message that the application gets.
    application: i64,
}

/// The member, the librdkafka below it, and the group around it.
struct Scene {
    omission: Omission,
    now: Instant,
    reading: Reading,
    ahead: Ahead,
    ledger: Ledger,
    /// Taken by the consumer and unsettled.
    taken: Vec<DeliveryToken>,
    offsets: BTreeMap<u64, (i32, i64)>,
    handled: BTreeSet<(i32, i64)>,
    assigned: BTreeMap<i32, Fetch>,
    /// The application's pause: it outlives the assignment.
    paused: BTreeSet<i32>,
    /// The current version of each partition. Messages fetched under another version are discarded.
    versions: BTreeMap<i32, u64>,
    queue: VecDeque<Queued>,
    /// The partitions that the group has assigned to this member, even if it does not know yet.
    given: BTreeSet<i32>,
    committed: BTreeMap<i32, i64>,
    ends: BTreeMap<i32, i64>,
}

fn place(partition: i32) -> Place {
    (Arc::from("orders"), partition)
}

fn places(partitions: &[i32]) -> Vec<Place> {
    partitions.iter().copied().map(place).collect()
}

impl Scene {
    fn new(omission: Omission) -> Self {
        let zeros = || (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        Self {
            omission,
            now: Instant::now(),
            reading: Reading::default(),
            ahead: Ahead::new(PREFETCH_LEN),
            ledger: Ledger::default(),
            taken: Vec::new(),
            offsets: BTreeMap::new(),
            handled: BTreeSet::new(),
            assigned: BTreeMap::new(),
            paused: BTreeSet::new(),
            versions: (0..PARTITIONS).map(|partition| (partition, 0)).collect(),
            queue: VecDeque::new(),
            given: BTreeSet::new(),
            committed: zeros(),
            ends: zeros(),
        }
    }

    /// Lets librdkafka fetch up to `max` messages of each partition that is not paused.
    fn fetch(&mut self, max: i64) {
        for (&partition, fetch) in &mut self.assigned {
            let end = self.ends[&partition].min(fetch.position + max);
            if self.paused.contains(&partition) {
                continue;
            }
            let version = self.versions[&partition];
            let fetched = fetch.position..end;
            fetch.position = fetch.position.max(end);
            self.queue.extend(fetched.map(|offset| Queued::Message { partition, offset, version }));
        }
    }

    /// Discards the fetched records of a partition, to fetch them again from the application's
    /// position.
    fn invalidate(&mut self, partition: i32) {
        *self.versions.entry(partition).or_default() += 1;
        if let Some(fetch) = self.assigned.get_mut(&partition) {
            fetch.position = fetch.application;
        }
    }

    fn set_paused(&mut self, places: &[Place], paused: bool) {
        for (_, partition) in places {
            let is_changed =
                if paused { self.paused.insert(*partition) } else { self.paused.remove(partition) };
            if is_changed {
                self.invalidate(*partition);
            }
        }
    }

    /// Polls once. Returns a message; other events return `None`.
    fn poll(&mut self) -> Option<(i32, i64)> {
        match self.queue.pop_front()? {
            Queued::Message { partition, offset, version } if version == self.versions[&partition] => {
                let fetch = self.assigned.get_mut(&partition)?;
                fetch.application = offset + 1;
                Some((partition, offset))
            }
            Queued::Message { .. } => self.poll(),
            Queued::Assign(partitions) => {
                for partition in &partitions {
                    let position = self.committed[partition];
                    self.assigned.insert(*partition, Fetch { position, application: position });
                }
                let paused = self.reading.assign(places(&partitions));
                if self.omission != Omission::PauseAfterAssign {
                    self.set_paused(&paused, true);
                }
                None
            }
            Queued::Revoke { partitions, is_lost } => {
                for partition in &partitions {
                    let done = self.ledger.forget(&place(*partition));
                    if let Some(done) = done.filter(|_| !is_lost) {
                        self.commit(*partition, done);
                    }
                }
                self.ahead.retain(|token| self.ledger.knows(token));
                let resumed = self.reading.revoke(places(&partitions));
                if self.omission != Omission::ResumeBeforeRevoke {
                    self.set_paused(&resumed, false);
                }
                for partition in &partitions {
                    self.invalidate(*partition);
                    self.assigned.remove(partition);
                }
                None
            }
        }
    }

    fn commit(&mut self, partition: i32, offset: i64) {
        let committed = self.committed.entry(partition).or_default();
        *committed = offset.max(*committed);
    }

    /// Runs an iteration of the subscription's thread.
    fn turn(&mut self) {
        for ((_, partition), offset) in self.ledger.moved() {
            if self.given.contains(&partition) {
                self.commit(partition, offset);
            }
        }
        let mut empty = 0;
        while empty < EMPTY_MAX {
            match self.reading.next(self.ahead.room(), self.now) {
                Next::Poll => {}
                Next::Wait => return,
                Next::Pause(places) => self.set_paused(&places, true),
                Next::Resume(places) => self.set_paused(&places, false),
            }
            match self.poll() {
                Some((partition, offset)) => {
                    empty = 0;
                    self.push(partition, offset);
                }
                None => empty += 1,
            }
        }
    }

    fn push(&mut self, partition: i32, offset: i64) {
        let (token, redelivered) = self.ledger.deliver(&place(partition), offset);
        self.reading.read(&place(partition), self.now);
        self.offsets.insert(token.0, (partition, offset));
        let malformed = Malformed::default();
        self.ahead.push(Delivery { token, message: Err(malformed), redelivered, origin: String::new() });
    }

    /// Lets the consumer take some of the prefetched messages.
    fn take(&mut self, max: usize) {
        let Some(max) = NonZeroUsize::new(max) else { return };
        self.taken.extend(self.ahead.take(max).into_iter().map(|delivery| delivery.token));
    }

    /// Lets the consumer settle a delivery or hand it back.
    fn settle(&mut self, index: usize, is_done: bool) {
        let token = self.taken.swap_remove(index);
        if is_done {
            self.handled.extend(self.offsets.get(&token.0));
            return self.ledger.done(token);
        }
        let Some(((_, partition), offset)) = self.ledger.release(token) else { return };
        self.ahead.retain(|token| self.ledger.knows(token));
        if self.omission != Omission::SeekAfterRelease
            && let Some(fetch) = self.assigned.get_mut(&partition)
        {
            fetch.application = offset;
            self.invalidate(partition);
        }
    }

    /// Lets the group assign partitions that this member does not have.
    fn assign(&mut self, partitions: Vec<i32>) {
        let new: Vec<i32> =
            partitions.into_iter().filter(|partition| self.given.insert(*partition)).collect();
        self.queue.push_back(Queued::Assign(new));
    }

    /// Lets the group revoke partitions. Other members have already continued from a lost one.
    fn revoke(&mut self, partitions: Vec<i32>, is_lost: bool) {
        let gone: Vec<i32> =
            partitions.into_iter().filter(|partition| self.given.remove(partition)).collect();
        self.queue.push_back(Queued::Revoke { partitions: gone, is_lost });
    }

    /// Lets another member handle a message of a partition that it has.
    fn handle_elsewhere(&mut self, partition: i32) {
        let is_told = self.assigned.contains_key(&partition);
        let next = self.committed[&partition];
        if !self.given.contains(&partition) && !is_told && next < self.ends[&partition] {
            self.handled.insert((partition, next));
            self.committed.insert(partition, next + 1);
        }
    }

    fn event(&mut self, chance: &mut Chance) {
        let partition = chance.below(PARTITIONS as usize) as i32;
        match chance.below(13) {
            0 | 1 => *self.ends.entry(partition).or_default() += chance.below(6) as i64,
            2 | 3 => self.fetch(chance.below(5) as i64),
            4 => self.now += Duration::from_millis(700),
            5 => self.take(chance.below(4)),
            6 if !self.taken.is_empty() => self.settle(chance.below(self.taken.len()), true),
            7 if !self.taken.is_empty() => self.settle(chance.below(self.taken.len()), false),
            8 => {
                let partitions = chance.partitions();
                self.assign(partitions);
            }
            9 => {
                let partitions = chance.partitions();
                self.revoke(partitions, chance.below(2) == 0);
            }
            10 => self.handle_elsewhere(partition),
            _ => self.turn(),
        }
    }

    /// Brings no new messages, assigns every partition to this member, and lets the consumer take
    /// everything.
    fn come_to_rest(&mut self) {
        self.assign((0..PARTITIONS).collect());
        for _ in 0..QUIET_TURNS {
            self.now += Duration::from_millis(100);
            self.fetch(3);
            self.turn();
            self.take(PREFETCH_LEN);
            while !self.taken.is_empty() {
                self.settle(0, true);
            }
        }
    }

    fn problem(&self) -> Option<String> {
        if self.ahead.len_peak() > PREFETCH_LEN {
            return Some(format!("{} messages fetched ahead", self.ahead.len_peak()));
        }
        None
    }

    fn unread(&self) -> Option<String> {
        let missing = self.ends.iter().filter(|(partition, end)| {
            self.committed[partition] != **end
                || (0..**end).any(|at| !self.handled.contains(&(**partition, at)))
        });
        let missing: Vec<i32> = missing.map(|(partition, _)| *partition).collect();
        (!missing.is_empty()).then(|| format!("partitions {missing:?} are not read to their ends"))
    }
}

/// Plays one sequence of events. Returns what went wrong, if anything.
fn play(seed: u64, omission: Omission) -> Option<String> {
    let (mut chance, mut scene) = (Chance(seed), Scene::new(omission));
    for _ in 0..EVENTS {
        scene.event(&mut chance);
    }
    scene.come_to_rest();
    scene.problem().or_else(|| scene.unread())
}

#[test]
fn every_partition_is_read_whatever_the_group_and_the_consumer_do() {
    for seed in 0..COURSES {
        if let Some(problem) = play(seed, Omission::Nothing) {
            panic!("course {seed}: {problem}");
        }
    }
}

#[test]
fn every_omission_is_found() {
    for omission in [Omission::ResumeBeforeRevoke, Omission::PauseAfterAssign, Omission::SeekAfterRelease] {
        let found = (0..COURSES).find_map(|seed| Some((seed, play(seed, omission)?)));
        let (seed, problem) = found.unwrap_or_else(|| panic!("{omission:?} was not found"));
        eprintln!("{omission:?} found in course {seed}: {problem}");
    }
}
