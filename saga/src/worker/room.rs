//! Decides how many more sagas to claim, and when.
//!
//! One statement claims many sagas, some of them ahead: these take the slots that become free while
//! the next statement is under way. Sagas are claimed ahead only while they end quickly. One that
//! waits for a slot longer than [`AHEAD_MAX`] is released, so that other workers find it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Sagas end quickly if they end within this time of each other.
const BRISK: Duration = Duration::from_millis(20);
/// Maximum time that a claimed saga waits for a slot.
const AHEAD_MAX: Duration = Duration::from_millis(250);

/// The slots of a worker.
pub(super) struct Room {
    slots: Arc<Semaphore>,
    concurrency: usize,
    /// When the last saga ended, and how long after the previous one.
    last: Option<(Instant, Duration)>,
}

impl Room {
    pub(super) fn new(concurrency: NonZeroU32) -> Self {
        // No process runs more than a semaphore can hold.
        let concurrency = (concurrency.get() as usize).min(Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(concurrency)), concurrency, last: None }
    }

    /// Waits until there is room, and returns the number of sagas that fit.
    pub(super) async fn free(&mut self, running: &mut JoinSet<()>) -> usize {
        loop {
            while running.try_join_next().is_some() {
                self.ended();
            }
            let count = running.len();
            if !self.is_brisk() {
                if count < self.concurrency {
                    return self.concurrency - count;
                }
                running.join_next().await;
                self.ended();
            } else if count <= self.concurrency {
                return self.concurrency + self.concurrency.div_ceil(2) - count;
            } else if timeout(BRISK, running.join_next()).await.is_ok() {
                self.ended();
            }
        }
    }

    /// Returns a slot once one is free; `None` after [`AHEAD_MAX`].
    pub(super) fn slot(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let slots = Arc::clone(&self.slots);
        async move { timeout(AHEAD_MAX, slots.acquire_owned()).await.ok()?.ok() }
    }

    fn ended(&mut self) {
        let now = Instant::now();
        let pause = self.last.map_or(Duration::MAX, |(last, _)| now.duration_since(last));
        self.last = Some((now, pause));
    }

    fn is_brisk(&self) -> bool {
        self.last.is_some_and(|(at, pause)| pause < BRISK && at.elapsed() < BRISK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn running(count: usize) -> JoinSet<()> {
        let mut running = JoinSet::new();
        for _ in 0..count {
            running.spawn(std::future::pending());
        }
        running
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_taken_ahead_of_slow_sagas() {
        let (mut room, mut sagas) = (Room::new(FOUR), running(1));
        assert_eq!(room.free(&mut sagas).await, 3);
        let mut sagas = running(3);
        sagas.spawn(tokio::time::sleep(BRISK * 3));
        // A saga that ends after a long time makes room for one.
        assert_eq!(room.free(&mut sagas).await, 1);
        sagas.spawn(std::future::pending());
        assert!(timeout(BRISK * 3, room.free(&mut sagas)).await.is_err(), "there is no room");
    }

    #[tokio::test(start_paused = true)]
    async fn some_are_taken_ahead_of_sagas_that_pass_quickly() {
        let (mut room, mut sagas) = (Room::new(FOUR), running(3));
        for _ in 0..3 {
            sagas.spawn(std::future::ready(()));
        }
        while sagas.len() > 3 {
            sagas.join_next().await;
            room.ended();
        }
        // Four run, and two wait.
        assert_eq!(room.free(&mut sagas).await, 3);
        let slots = [room.slot(), room.slot(), room.slot(), room.slot(), room.slot()];
        let mut held = Vec::new();
        for slot in slots {
            held.push(slot.await);
        }
        assert_eq!(held.iter().flatten().count(), 4, "the fifth has waited, and got none");
    }
}
