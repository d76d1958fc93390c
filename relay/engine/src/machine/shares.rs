//! Keeps a single key from filling the window.
//!
//! With one message per key in flight, a burst of one key leaves at the pace of its destination. It
//! would fill the window, and the entries of all other keys would wait behind it. So while nothing
//! more can be read, a key with more than its share of the window is treated as if something
//! stopped it: its entries that wait are held, all but the one in flight, and what follows them in
//! the log is held as well. They are read back page by page, as long as the key has fewer than half
//! a page in the window.
//!
//! Entries of the log that are held for this alone are stored twice, so they have a limit. Beyond
//! it, the log is not read, and other keys wait for some of them to leave (`bursts.rs`).
//!
//! Neither delays the cursor for long: it waits for the one entry in flight, and not for entries
//! that were read back (`window.rs`). While nothing is in flight, nothing is held, so that an
//! outage does not move a full window beside the log.

use message::{OrderingKey, Ticket};
use outbox_log::{DueKind, ExceptionState, HeldAsk};

use super::{DUE_SHARE, Machine};
use crate::amount::Amount;
use crate::held::QueueHash;
use crate::options::EngineOptions;
use crate::window::Origin;

/// Divisor of the open entries: the share of a key.
const KEY_SHARE: usize = 32;

/// How many windows of entries, and of bytes, may be held for no other reason than that their keys
/// have too many: 524,288 entries and 768 MiB by default. Usually a window is full of bytes long
/// before it is full of entries, so a burst needs more windows of bytes.
const BURSTS_MAX: Amount = Amount { entries: 8, bytes: 64 };

/// Maximum entries of a key that are read back at once.
const PAGE: usize = if cfg!(test) { 4 } else { 64 };

impl Machine {
    /// Holds what waits of keys that have more than their share, if nothing more can be read
    /// because the window is full. Call it now and then: it looks at all keys.
    pub(crate) fn make_room(&mut self) {
        self.blocks.forget_bursts();
        if !self.is_congested() || !self.may_make_room() {
            return;
        }
        let before = self.window.open_len();
        let share = before / KEY_SHARE;
        let queues: Vec<Vec<Ticket>> =
            self.key_queues.longer_than(share).map(|waiting| waiting.iter().copied().collect()).collect();
        for ticket in queues.iter().filter_map(|waiting| waiting.first()) {
            if let Some(item) = self.window.get_mut(*ticket) {
                self.blocks.bursts.begin(QueueHash::of("", item.key()));
            }
        }
        let mut first: Vec<Ticket> =
            queues.into_iter().filter_map(|waiting| self.first_of(waiting)).collect();
        first.sort_unstable();
        self.requeue |= !first.is_empty();
        for ticket in first {
            // The others behind it follow when they are checked again.
            self.park_from_window(ticket, ExceptionState::Held, None, None, None);
        }
        // Entries that wait for a queue that is read page by page would keep the window full, too.
        self.requeue |= self.blocks.held.give_way();
        self.check_again();
        self.moved_out_since(before);
    }

    /// Records that an entry of the log is held. It counts if its queue gets further.
    pub(super) fn held_from_log(&mut self, topic: &str, key: Option<&str>, bytes: usize) {
        if self.blocks.holds_behind_others(topic, key) {
            self.blocks.bursts.add(QueueHash::of(topic, key), bytes);
        }
    }

    /// Returns whether so much is held of bursts that the log must wait for it.
    pub(super) fn has_held_enough(&self) -> bool {
        let EngineOptions { window_entries, window_bytes, .. } = &self.settings;
        self.blocks.bursts_reach(Amount {
            entries: window_entries.saturating_mul(BURSTS_MAX.entries),
            bytes: window_bytes.saturating_mul(BURSTS_MAX.bytes),
        })
    }

    /// Returns whether the log or scheduled entries cannot be read before others have left.
    fn is_congested(&self) -> bool {
        // Most changes cannot be stored before the cursor has passed their entries.
        let is_behind = self.changes_len() < self.unstored_len() / 2;
        !self.has_room_in_window()
            || is_behind && !self.has_room_for_changes()
            || !self.window.has_room_for_due(DueKind::Scheduled, DUE_SHARE)
    }

    /// Returns whether the broker gets the messages of a key one by one, and answers.
    fn may_make_room(&self) -> bool {
        let is_working = self.session.in_flight_len() > 0 && self.session.must_end().is_none();
        is_working && !self.is_pipelined && !self.is_paused()
    }

    /// Returns the first of these entries that was read from the log or scheduled.
    fn first_of(&mut self, waiting: Vec<Ticket>) -> Option<Ticket> {
        let is_new = |origin: &Origin| matches!(origin, Origin::Log(_) | Origin::Due(DueKind::Scheduled));
        waiting
            .into_iter()
            .find(|ticket| self.window.get_mut(*ticket).is_some_and(|item| is_new(&item.origin)))
    }

    /// Returns which held entries to read now.
    pub(crate) fn held_asks(&mut self) -> Vec<HeldAsk> {
        let key_queues = &self.key_queues;
        self.blocks.asks(|queue| {
            let key = queue.key().and_then(|key| OrderingKey::new(key).ok());
            key.is_some_and(|key| key_queues.waiting_len(&key) >= PAGE / 2)
        })
    }

    /// Returns how many held entries to read at most for these requests: a page of each key, and of
    /// busy topics no more than their turn.
    pub(crate) fn held_max(&self, asks: &[HeldAsk]) -> usize {
        let is_paged = !self.is_pipelined && asks.iter().all(|ask| ask.queue.key().is_some());
        let of_pages = if is_paged { PAGE * asks.len() } else { usize::MAX };
        self.held_len(asks).map_or(of_pages, |of_turns| of_turns.min(of_pages))
    }

    /// Returns how many entries to read of these queues together, if all of them are of busy
    /// topics: more would be read in vain.
    pub(super) fn held_len(&self, asks: &[HeldAsk]) -> Option<usize> {
        let share = |ask: &HeldAsk| self.blocks.held.share(QueueHash::of_name(&ask.queue));
        asks.iter().map(share).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use message::{MaxInFlightPerKey, Message, PublishError, Receipt, Submission};
    use outbox_log::{
        Cursor, EntryId, Exception, ExceptionChange, HeldPage, HeldQueue, HeldQueues, Mark, PauseScope,
        QueueName,
    };

    use super::super::bench::{Bench, exception, message_for};
    use super::super::world::settings;
    use super::*;
    use crate::blocks::Blocks;
    use crate::paused::Paused;

    /// A bench with a window of 100 entries, and with its database.
    struct Scene {
        bench: Bench,
        rows: BTreeMap<EntryId, Exception>,
        messages: Vec<Message>,
        /// How many changes the database has stored.
        stored: usize,
    }

    /// A message that leaves: its ticket, its key, and its place in the log.
    struct Sent {
        ticket: Ticket,
        key: String,
        place: i64,
    }

    impl Scene {
        fn new(window: MaxInFlightPerKey) -> Self {
            let settings = EngineOptions { window_entries: 100, ..settings() };
            let machine = Machine::new(settings, Cursor::at(Mark::new("0")), Blocks::default());
            let mut bench = Bench { machine, last: 0 };
            bench.machine.session_started(window);
            Self { bench, rows: BTreeMap::new(), messages: Vec::new(), stored: 0 }
        }

        /// Returns a scene whose window is full of one key, of which one message is in flight.
        fn full(window: MaxInFlightPerKey) -> Self {
            let mut scene = Self::new(window);
            scene.read_all("busy", 100);
            assert!(!scene.bench.machine.has_room());
            scene
        }

        fn read(&mut self, key: &str) {
            let message = message_for("t", key);
            self.bench.read(&message);
            self.messages.push(message);
        }

        /// Reads messages of a key while there is room for them. Returns how many.
        fn read_all(&mut self, key: &str, len: usize) -> usize {
            (0..len).take_while(|_| self.bench.machine.has_room().then(|| self.read(key)).is_some()).count()
        }

        /// Stores everything that can be stored.
        fn store(&mut self) {
            while let Some(checkpoint) = self.bench.machine.checkpoint() {
                self.stored += checkpoint.changes.len();
                for change in checkpoint.changes {
                    match change {
                        ExceptionChange::Park(parked) => {
                            let message = &self.messages[usize::try_from(parked.id.0 - 1).unwrap()];
                            self.rows.insert(parked.id, exception(parked.id.0, message, parked.state));
                        }
                        ExceptionChange::Resolve(id) => _ = self.rows.remove(&id),
                    }
                }
                self.bench.machine.checkpointed();
            }
        }

        /// Answers the queries for held entries, with as many as they ask for. Returns how many
        /// came.
        fn read_back(&mut self) -> usize {
            if !self.bench.machine.has_room_for_held() {
                return 0;
            }
            self.bench.machine.asks();
            let asks = self.bench.machine.held_asks();
            let each = self.bench.machine.held_max(&asks) / asks.len().max(1);
            let page = |ask: &HeldAsk| {
                let is_held = |row: &&Exception| {
                    row.state == ExceptionState::Held && QueueName::of("t", row.entry.key()) == ask.queue
                };
                let mut held = self.rows.range(ask.from..).map(|(_, row)| row).filter(is_held);
                let exceptions: Vec<_> = held.by_ref().take(each).cloned().collect();
                HeldPage { exceptions, exhausted: held.next().is_none() }
            };
            let pages: Vec<_> = asks.iter().map(page).collect();
            let read = pages.iter().map(|page| page.exceptions.len()).sum();
            self.bench.machine.held(&asks, pages);
            read
        }

        /// Does what the driver does at each tick.
        fn tick(&mut self) {
            self.bench.machine.give_way();
            self.bench.machine.make_room();
            self.store();
            self.read_back();
        }

        fn submit(&mut self) -> Vec<Sent> {
            let sent = |Submission { ticket, message }: Submission| {
                let place = self.messages.iter().position(|other| other.id == message.id).unwrap();
                let key = message.key.as_ref().unwrap().to_string();
                Sent { ticket, key, place: i64::try_from(place).unwrap() + 1 }
            };
            self.bench.machine.submissions(999).into_iter().map(sent).collect()
        }
    }

    /// Goal: a burst of one key, far larger than the window, delays no other key, leaves in order,
    /// and keeps the cursor from nothing. Oracle: when messages of other keys leave; the places of
    /// the messages of the busy key, of which each is answered after ten ticks.
    #[test]
    fn a_burst_of_one_key_delays_no_other_key() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        let burst = 500;
        let (mut read, mut busy, mut others) = (0, Vec::new(), Vec::new());
        let mut in_flight: Option<Ticket> = None;
        for tick in 0..6_000 {
            read += scene.read_all("busy", burst - read);
            if read == burst && others.len() < 200 && scene.bench.machine.has_room() {
                scene.read(&format!("other-{tick}"));
            }
            for Sent { ticket, key, place } in scene.submit() {
                if key == "busy" {
                    assert!(in_flight.replace(ticket).is_none(), "two of a key are in flight");
                    busy.push(place);
                } else {
                    assert_eq!(key, format!("other-{tick}"), "it leaves at once");
                    others.push(tick);
                    scene.bench.confirm(ticket);
                }
            }
            scene.tick();
            if tick % 10 == 9 {
                in_flight.take().into_iter().for_each(|ticket| scene.bench.confirm(ticket));
            }
            assert!(scene.bench.machine.open_len() <= 100, "the burst is not in memory");
        }
        assert!(others.len() == 200 && others[199] < 500, "the last other one left at {:?}", others.last());
        assert!(busy.len() == burst && busy.is_sorted(), "{busy:?}");
        assert!(scene.rows.is_empty() && scene.bench.machine.open_len() == 0);
        assert!(scene.stored <= 2 * burst + 50, "{} changes were stored", scene.stored);
    }

    /// Goal: of a backlog of few keys, no more is copied beside the log than the limit says, and it
    /// leaves completely and in order. Then a burst that begins while the key is held is bounded as
    /// well; one that something stops does not stop the log. Oracle: the rows, and what leaves.
    #[test]
    fn what_is_held_of_bursts_is_bounded() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        let limit = 100 * BURSTS_MAX.entries;
        let (mut read, mut most) = (0, 0);
        let mut places: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut in_flight = Vec::new();
        for _ in 0..4_000 {
            while read < 3_000 && scene.bench.machine.has_room() {
                scene.read(["a", "b"][read % 2]);
                read += 1;
            }
            for Sent { ticket, key, place } in scene.submit() {
                places.entry(key).or_default().push(place);
                in_flight.push(ticket);
            }
            scene.tick();
            most = most.max(scene.rows.len());
            in_flight.drain(..).for_each(|ticket| scene.bench.confirm(ticket));
        }
        assert!((limit / 2..=limit + 200).contains(&most), "{most} rows");
        for key in ["a", "b"] {
            assert!(places[key].len() == 1_500 && places[key].is_sorted(), "{:?}", places[key]);
        }
        assert!(scene.rows.is_empty() && scene.bench.machine.open_len() == 0);
    }

    /// Goal: the log waits for bursts only while they get further. Oracle: whether it is read while
    /// the key of a burst above the limit is paused, and after that.
    #[test]
    fn a_burst_that_something_stops_does_not_stop_the_log() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        let mut in_flight = Vec::new();
        for step in 0..1_500 {
            scene.read_all("busy", 1_000);
            in_flight.extend(scene.submit());
            scene.tick();
            // In the end nothing leaves.
            if step < 1_000 {
                in_flight.drain(..).for_each(|sent: Sent| scene.bench.confirm(sent.ticket));
            }
        }
        let limit = 100 * BURSTS_MAX.entries;
        assert!((limit - 100..limit + 100).contains(&scene.rows.len()), "{} rows", scene.rows.len());
        assert!(!scene.bench.machine.has_room(), "the log waits");
        let paused = |keys: &[&str]| {
            Paused::of(keys.iter().map(|key| PauseScope::Key((*key).to_owned())).collect::<Vec<_>>())
        };
        scene.bench.machine.pauses(paused(&["busy"]));
        let (before, mut read) = (scene.rows.len(), 0);
        for _ in 0..100 {
            scene.submit();
            scene.tick();
            read += scene.read_all("busy", 50);
        }
        assert!(read > 1_000 && scene.rows.len() > before + 1_000, "{read} of the log were read");
        scene.tick();
        scene.read("other");
        assert_eq!(scene.submit()[0].key, "other");
        assert!(scene.bench.machine.has_room());
        scene.bench.machine.pauses(paused(&[]));
        let (name, topic) = (QueueName::of("t", Some("busy")), String::from("t"));
        let first = *scene.rows.keys().next().unwrap();
        scene.bench.machine.asks();
        let queues = vec![HeldQueue { name, first, topic }];
        scene.bench.machine.names(HeldQueues { queues, exhausted: true });
        assert!(!scene.bench.machine.has_room(), "it gets further, and the log waits again");
    }

    /// Goal: a burst that goes on delays no other key, although the cursor waited for a slow key
    /// near the beginning of the burst, so that few of its entries were stored at first. Oracle:
    /// the ticks in which messages of other keys leave.
    #[test]
    fn a_burst_that_goes_on_delays_no_other_key() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        let (mut read, mut last, mut busy) = (0, 0, Vec::new());
        let mut in_flight = BTreeMap::new();
        for tick in 0..400 {
            while scene.bench.machine.has_room() {
                read += 1;
                match read {
                    11 => scene.read("slow"),
                    _ if read % 4 == 0 => scene.read(&format!("other-{read}")),
                    _ => scene.read("busy"),
                }
            }
            for Sent { ticket, key, place } in scene.submit() {
                if key.starts_with("other") {
                    last = tick;
                    scene.bench.confirm(ticket);
                } else {
                    busy.extend((key == "busy").then_some(place));
                    in_flight.insert(key, ticket);
                }
            }
            assert!(tick - last < 100, "none of {} others left since tick {last}", read / 4);
            scene.tick();
            if tick % 10 == 9 {
                in_flight.remove("busy").into_iter().for_each(|ticket| scene.bench.confirm(ticket));
            }
            if tick == 35 {
                in_flight.remove("slow").into_iter().for_each(|ticket| scene.bench.confirm(ticket));
            }
        }
        assert!(busy.len() >= 30 && busy.is_sorted(), "{busy:?}");
    }

    #[test]
    fn entries_that_were_read_back_do_not_keep_the_cursor() {
        let mut scene = Scene::full(MaxInFlightPerKey::One);
        let first = scene.submit().remove(0);
        scene.tick();
        assert_eq!((scene.bench.machine.open_len(), scene.rows.len()), (1, 0), "the cursor waits for one");
        scene.bench.confirm(first.ticket);
        scene.tick();
        assert_eq!(scene.bench.machine.open_len(), PAGE);
        assert_eq!(scene.submit()[0].place, 2);
        assert_eq!(scene.read_back(), 0, "enough of the key is there");
        scene.read("other");
        let other = scene.submit().remove(0);
        scene.bench.confirm(other.ticket);
        assert_eq!(scene.bench.cursor(), Cursor::at(Mark::new(scene.bench.last.to_string())));
    }

    /// Goal: nothing is moved beside the log in an outage, in a pause, by a broker that gets the
    /// messages of a key pipelined, and while the window has room. Oracle: the number of changes.
    #[test]
    fn nothing_is_held_unless_the_broker_gets_one_message_of_a_key_at_a_time() {
        let held = |scene: &mut Scene| {
            scene.bench.machine.make_room();
            scene.bench.machine.unstored_len()
        };
        let mut scene = Scene::full(MaxInFlightPerKey::One);
        assert_eq!(held(&mut scene), 0, "nothing is in flight");
        let sent = scene.submit().remove(0);
        let all = |scopes: &[PauseScope]| Paused::of(scopes.iter().cloned());
        scene.bench.machine.pauses(all(&[PauseScope::Pipeline]));
        assert_eq!(held(&mut scene), 0, "everything is paused");
        scene.bench.machine.pauses(all(&[]));
        let lost = Receipt { ticket: sent.ticket, outcome: Err(PublishError::session_lost("gone")) };
        scene.bench.machine.receipt(lost, 0.5);
        assert_eq!(held(&mut scene), 0, "the session is lost");
        scene.bench.machine.session_started(MaxInFlightPerKey::One);
        scene.submit();
        let waiting = scene.bench.machine.open_len() - 1;
        assert_eq!(held(&mut scene), waiting, "all but the one in flight");

        let mut scene = Scene::full(MaxInFlightPerKey::Pipelined);
        scene.submit();
        assert_eq!(held(&mut scene), 0);
        scene.bench.machine.session_started(MaxInFlightPerKey::One);
        scene.submit();
        assert_eq!(held(&mut scene), 0, "the session looks for a culprit");

        let mut scene = Scene::new(MaxInFlightPerKey::One);
        scene.read_all("busy", 40);
        scene.submit();
        assert_eq!(held(&mut scene), 0, "there is room");
    }

    /// Goal: a burst that is scheduled for one time keeps nothing else that is scheduled from
    /// leaving, and keeps its order. Oracle: what leaves while the burst has its first message in
    /// flight; the places of all.
    #[test]
    fn scheduled_messages_of_one_key_are_held_as_well() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        scene.messages = (0..30).map(|_| message_for("t", "busy")).collect();
        scene.messages.push(message_for("t", "other"));
        let due = |places: std::ops::RangeInclusive<i64>, messages: &[Message]| -> Vec<Exception> {
            let row =
                |id| exception(id, &messages[usize::try_from(id - 1).unwrap()], ExceptionState::Scheduled);
            places.map(row).collect()
        };
        scene.bench.last = 40;
        scene.bench.machine.due(due(1..=25, &scene.messages), 0.5);
        assert!(!scene.bench.machine.has_room_for_due(DueKind::Scheduled));
        let first = scene.submit().remove(0);
        scene.tick();
        assert!(scene.bench.machine.has_room_for_due(DueKind::Scheduled));
        scene.bench.machine.due(due(26..=31, &scene.messages), 0.5);
        let other = scene.submit().remove(0);
        assert_eq!((other.key.as_str(), other.place), ("other", 31));
        scene.bench.confirm(first.ticket);
        let mut places = vec![first.place];
        for _ in 0..100 {
            scene.tick();
            for sent in scene.submit() {
                places.push(sent.place);
                scene.bench.confirm(sent.ticket);
            }
        }
        assert!(places.iter().copied().eq(1..=30), "{places:?}");
    }

    /// Goal: while retried messages take all of their share, a topic that was stopped goes on once
    /// its probe is due. Oracle: the probe that is asked for, and the topic.
    #[test]
    fn the_probe_of_a_stopped_topic_needs_no_room_among_what_is_retried() {
        let mut scene = Scene::new(MaxInFlightPerKey::One);
        scene.read("a");
        let sent = scene.submit().remove(0);
        scene.bench.fail(sent.ticket);
        scene.store();
        scene.messages.extend((2..=30).map(|n| message_for("u", &format!("k{n}"))));
        let retried = |id: i64| {
            exception(id, &scene.messages[usize::try_from(id - 1).unwrap()], ExceptionState::Retrying)
        };
        let rows = (2..=30).map(retried).collect();
        scene.bench.machine.due(rows, 0.5);
        assert!(!scene.bench.machine.has_room_for_due(DueKind::Retrying));
        assert!(scene.bench.machine.has_room_for_exceptions());
        assert_eq!(scene.bench.machine.probes(), [EntryId(1)]);
        let probe = scene.rows[&EntryId(1)].clone();
        scene.bench.machine.due(vec![probe], 0.5);
        assert_eq!(scene.bench.machine.probes(), [], "it is in the window");
        let probe = scene.submit().into_iter().find(|sent| sent.place == 1).unwrap();
        scene.bench.confirm(probe.ticket);
        assert_eq!(scene.bench.machine.load().blocked_topics, 0);
    }
}
