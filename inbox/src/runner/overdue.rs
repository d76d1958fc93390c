//! Detects handlers that still run after their timeout, because they block their thread.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::MessageId;

use super::waits::{Wait, WaitReason};
use crate::ids::ConsumerName;
use crate::telemetry::Meter;

/// How long after its timeout a running handler counts as blocking.
const GRACE: Duration = Duration::from_secs(1);

/// Interval between checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Checks from a separate thread while the consumer exists.
pub(super) fn watch(running: &Arc<Running>, consumer: ConsumerName, meter: Meter, timeout: Duration) {
    let running = Arc::downgrade(running);
    let look = move || {
        while let Some(running) = running.upgrade() {
            let (blocked, new) = running.overdue(Instant::now(), timeout);
            meter.blocked(blocked);
            for (id, running_for) in new {
                tracing::error!(consumer = %consumer, message_id = %id, ?running_for,
                    "the handler blocks its thread and cannot be stopped; run blocking code in spawn_blocking");
            }
            drop(running);
            std::thread::sleep(PERIOD);
        }
    };
    if let Err(error) = std::thread::Builder::new().name(String::from("inbox-watch")).spawn(look) {
        tracing::warn!(%error, "handlers that block their threads will not be reported: the checking thread could not start");
    }
}

/// The handlers that are running.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    running: BTreeMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    id: MessageId,
    begun_at: Instant,
    is_told: bool,
}

/// One running call; dropping it ends it.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    running: &'a Running,
    number: u64,
}

impl Running {
    /// Registers a call of a handler.
    pub(super) fn enter(&self, id: MessageId) -> Entry<'_> {
        let mut calls = self.lock();
        calls.last += 1;
        let number = calls.last;
        calls.running.insert(number, Call { id, begun_at: Instant::now(), is_told: false });
        Entry { running: self, number }
    }

    /// Returns the messages whose handlers run.
    pub(super) fn messages(&self) -> HashSet<MessageId> {
        self.lock().running.values().map(|call| call.id).collect()
    }

    /// Returns how long handlers run, with the one that has run longest; `None` while none runs.
    pub(super) fn wait(&self, now: Instant) -> Option<Wait> {
        let calls = self.lock();
        let oldest = calls.running.values().min_by_key(|call| call.begun_at)?;
        let waited = now.saturating_duration_since(oldest.begun_at);
        let wait = Wait::of(WaitReason::Handler, waited);
        Some(Wait { message: Some(oldest.id), messages: calls.running.len(), ..wait })
    }

    /// Returns the number of blocking handlers, and those that were not reported yet.
    fn overdue(&self, now: Instant, timeout: Duration) -> (usize, Vec<(MessageId, Duration)>) {
        let mut blocked = 0;
        let mut new = Vec::new();
        for call in self.lock().running.values_mut() {
            let running_for = now.saturating_duration_since(call.begun_at);
            if running_for < timeout.saturating_add(GRACE) {
                continue;
            }
            blocked += 1;
            if !std::mem::replace(&mut call.is_told, true) {
                new.push((call.id, running_for));
            }
        }
        (blocked, new)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.running.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_outlives_its_timeout_is_told_once_and_counted_until_it_ends() {
        let (running, timeout) = (Running::default(), Duration::from_secs(60));
        let before = Instant::now();
        let entry = running.enter(MessageId::new());
        let after = Instant::now();
        assert_eq!(running.overdue(before + timeout + GRACE / 2, timeout), (0, Vec::new()));
        let late = after + timeout + GRACE;
        let (blocked, new) = running.overdue(late, timeout);
        assert_eq!((blocked, new.len()), (1, 1));
        assert_eq!(running.overdue(late, timeout), (1, Vec::new()));
        let wait = running.wait(late).unwrap();
        assert_eq!((wait.reason, wait.messages), (WaitReason::Handler, 1));
        assert!(wait.waited >= timeout + GRACE && running.messages().contains(&wait.message.unwrap()));
        drop(entry);
        assert_eq!(running.overdue(late, timeout), (0, Vec::new()));
        assert_eq!(running.wait(late), None);
    }
}
