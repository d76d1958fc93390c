//! Bounds on a relay's memory, checked after every step of its engine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use engine::EngineOptions;
use engine::simulation::{Machine, Observer};

use crate::fleet::MESSAGE_BYTES;
use crate::process::ProcessId;
use crate::world::World;

/// Maximum number of queues of held entries in a schedule. One answer may have an entry of each.
const QUEUES: usize = 24;

/// The bounds of one relay.
///
/// A batch of the log and an answer about exceptions each enter the window as soon as it has any
/// room left, so either may exceed it.
struct Bounds {
    entries: usize,
    bytes: usize,
    pages: usize,
    unstored: usize,
    awaited: usize,
    with_publisher: usize,
}

impl Bounds {
    fn of(settings: &EngineOptions) -> Self {
        let pages = settings.page_entries + settings.page_entries.max(QUEUES);
        let entries = settings.window_entries + pages;
        Self {
            entries,
            bytes: settings.window_bytes + 2 * (settings.page_bytes + MESSAGE_BYTES),
            pages,
            unstored: settings.unstored_max,
            awaited: settings.window_entries + settings.window_entries / 2,
            with_publisher: 2 * settings.window_entries,
        }
    }

    /// Returns the quantity that is above its bound. `awaited` is the maximum number of unanswered
    /// messages so far: each may change twice, when it is postponed and when it is answered.
    fn exceeded(&self, machine: &Machine, awaited: usize) -> Option<String> {
        let unstored = self.unstored + self.entries + self.pages + 2 * awaited;
        let with_publisher = machine.in_flight_len() + machine.load().unanswered;
        let found = [
            ("entries in the window", machine.open_len(), self.entries),
            ("bytes in the window", machine.load().window_bytes, self.bytes),
            ("changes that are not stored", machine.unstored_len(), unstored),
            ("messages without an answer", machine.load().unanswered, self.awaited),
            ("messages with the publisher", with_publisher, self.with_publisher),
        ];
        let (what, found, bound) = found.into_iter().find(|(_, found, bound)| found > bound)?;
        Some(format!("{found} {what}, and the bound is {bound}"))
    }
}

/// Returns an observer of a relay's memory. It reports the first time that something is above its
/// bound.
pub(crate) fn observer(world: &Arc<World>, process: ProcessId, settings: &EngineOptions) -> Observer {
    let bounds = Bounds::of(settings);
    let world: Weak<World> = Arc::downgrade(world);
    let awaited = AtomicUsize::new(0);
    let is_told = AtomicBool::new(false);
    Arc::new(move |machine: &Machine| {
        let before = awaited.fetch_max(machine.load().unanswered, Ordering::Relaxed);
        let problem = bounds.exceeded(machine, before.max(machine.load().unanswered));
        if let Some(problem) = problem
            && !is_told.swap(true, Ordering::Relaxed)
            && let Some(world) = world.upgrade()
        {
            world.lock().found_too_much(format!("{process} holds {problem}"));
        }
    })
}
