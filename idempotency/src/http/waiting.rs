//! Requests that wait for the outcome of another request with their key.
//!
//! A process has a bounded number of places to wait. For each key, one request at a time has the
//! turn: it asks the database with growing pauses, or at once when the request that held the key
//! has ended in this process. A waiting request does nothing else in the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use message::Backoff;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::KeyId;

/// Pauses between two looks of a process at a key that another process holds.
const LOOKS: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_secs(1) };

/// The requests of a process that wait.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Maximum number of all requests that wait.
    all_max: usize,
    /// Maximum number of requests that wait for one key.
    per_key_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    all: usize,
    /// Contains only keys for which a request waits.
    keys: HashMap<KeyId, Waited>,
}

/// A key for which requests wait.
#[derive(Debug, Default)]
struct Waited {
    places: usize,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The request that holds it asks the database. It counts the looks so far.
    turn: Arc<tokio::sync::Mutex<u32>>,
    /// Signals that a request of this process has ended. A signal is kept until it is awaited, so
    /// one that comes during a look is not lost.
    ended: Notify,
}

/// A request's place to wait; its drop gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    waiters: Arc<Waiters>,
    id: KeyId,
    queue: Arc<Queue>,
    turn: Option<OwnedMutexGuard<u32>>,
}

impl Waiters {
    pub(crate) fn new(all_max: usize, per_key_max: usize) -> Arc<Self> {
        Arc::new(Self { all_max, per_key_max, table: Mutex::default() })
    }

    /// Returns the number of requests that wait.
    pub(crate) fn count(&self) -> usize {
        self.table().all
    }

    /// Takes a place; `None` when all of them are taken, or all of this key.
    pub(super) fn join(self: &Arc<Self>, id: &KeyId) -> Option<Place> {
        let mut table = self.table();
        let of_key = table.keys.get(id).map_or(0, |waited| waited.places);
        if table.all >= self.all_max || of_key >= self.per_key_max {
            return None;
        }
        table.all += 1;
        let waited = table.keys.entry(id.clone()).or_default();
        waited.places += 1;
        let queue = Arc::clone(&waited.queue);
        Some(Place { waiters: Arc::clone(self), id: id.clone(), queue, turn: None })
    }

    /// Wakes the request that has the turn, because a request with this key has ended.
    fn ended(&self, id: &KeyId) {
        if let Some(waited) = self.table().keys.get(id) {
            waited.queue.ended.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until this request should look at its key; false once `until` has passed. The last
    /// look is at `until`. Cancel-safe.
    pub(super) async fn next(&mut self, until: Instant) -> bool {
        if Instant::now() >= until {
            return false;
        }
        let Some(looks) = &mut self.turn else {
            let turn = Arc::clone(&self.queue.turn).lock_owned();
            let Ok(turn) = timeout_at(until, turn).await else { return false };
            // The key may have ended since the last look.
            self.turn = Some(turn);
            return true;
        };
        **looks = looks.saturating_add(1);
        let look_at = Instant::now() + LOOKS.delay(**looks, rand::random());
        tokio::select! {
            () = self.queue.ended.notified() => **looks = 0,
            () = sleep_until(look_at.min(until)) => {}
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.waiters.table();
        table.all -= 1;
        let Some(waited) = table.keys.get_mut(&self.id) else { return };
        waited.places -= 1;
        if waited.places == 0 {
            table.keys.remove(&self.id);
        }
    }
}

/// A request that has acquired its key; its drop wakes those that wait for it.
#[derive(Debug)]
pub(super) struct Running {
    waiters: Arc<Waiters>,
    id: KeyId,
}

impl Running {
    pub(super) fn new(waiters: &Arc<Waiters>, id: &KeyId) -> Self {
        Self { waiters: Arc::clone(waiters), id: id.clone() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.waiters.ended(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: &str) -> KeyId {
        KeyId::of_texts("tenant", "POST /orders", key).unwrap()
    }

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn places_are_bounded_for_each_key_and_for_all_and_come_back() {
        let waiters = Waiters::new(3, 2);
        let first = waiters.join(&id("a")).unwrap();
        let second = waiters.join(&id("a")).unwrap();
        assert!(waiters.join(&id("a")).is_none(), "the key is full");
        let third = waiters.join(&id("b")).unwrap();
        assert!(waiters.join(&id("c")).is_none(), "the process is full");
        drop((first, second));
        assert_eq!(waiters.count(), 1);
        assert!(waiters.join(&id("a")).is_some());
        drop(third);
        assert_eq!(waiters.count(), 0);
        assert!(waiters.table().keys.is_empty(), "a key that nobody waits for is forgotten");
    }

    /// Goal: the looks at a key that another process holds are few. Oracle: their number in ten
    /// minutes of virtual time.
    #[tokio::test(start_paused = true)]
    async fn looks_become_rare_and_end_at_the_limit() {
        let waiters = Waiters::new(1, 1);
        let mut place = waiters.join(&id("a")).unwrap();
        let begun_at = Instant::now();
        let until = begun_at + Duration::from_secs(600);
        let mut looks = 0;
        while place.next(until).await {
            looks += 1;
        }
        assert!((600..1_300).contains(&looks), "{looks}");
        assert!(begun_at.elapsed() < Duration::from_millis(600_100), "{:?}", begun_at.elapsed());
    }

    /// Goal: the end of a request in this process is seen at once, also when it comes during a
    /// look. Oracle: virtual time, which does not pass.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_request_in_this_process_wakes_at_once() {
        let waiters = Waiters::new(1, 1);
        let mut place = waiters.join(&id("a")).unwrap();
        let until = Instant::now() + LONG;
        for _ in 0..20 {
            assert!(place.next(until).await);
        }
        let before = Instant::now();
        drop(Running::new(&waiters, &id("another")));
        drop(Running::new(&waiters, &id("a")));
        assert!(place.next(until).await);
        assert_eq!(before.elapsed(), Duration::ZERO, "the signal is kept");
        let waiting = tokio::spawn(async move { place.next(until).await.then(Instant::now) });
        tokio::task::yield_now().await;
        drop(Running::new(&waiters, &id("a")));
        assert_eq!(waiting.await.unwrap(), Some(before));
    }

    /// Goal: of many requests that wait for one key, one asks the database. Oracle: the others have
    /// no turn, and get it when the first one is answered or its client is gone.
    #[tokio::test(start_paused = true)]
    async fn one_request_at_a_time_has_the_turn() {
        let waiters = Waiters::new(9, 9);
        let until = Instant::now() + LONG;
        let mut first = waiters.join(&id("a")).unwrap();
        let mut second = waiters.join(&id("a")).unwrap();
        assert!(first.next(until).await);
        let soon = Instant::now() + Duration::from_secs(60);
        assert!(!second.next(soon).await, "it has waited for the turn up to its limit");
        drop(first);
        assert!(second.next(until).await);
    }
}
