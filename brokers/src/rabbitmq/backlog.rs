//! Keeps messages that wait to be published, by topic, and chooses the next ones for a lane.
//!
//! A window holds messages of a single topic, on its own channel. A topic has a bounded number of
//! windows in flight. So a queue that confirms nothing keeps a few channels busy, and no other
//! topic waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use message::Topic;
use tokio::sync::Notify;

use super::window::{Item, Window, WindowLimit};

/// The messages that wait in one session.
#[derive(Debug)]
pub(super) struct Backlog {
    state: Mutex<State>,
    changed: Notify,
    limit: WindowLimit,
    windows_per_topic: usize,
}

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<Topic, Queue>,
    /// Topics with a message that may be taken, each once, in order of turn.
    ready: VecDeque<Topic>,
    /// Windows that lanes have taken and not returned.
    busy: usize,
    closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Item>,
    /// Windows of this topic that lanes have taken.
    windows: usize,
    is_ready: bool,
}

impl Backlog {
    pub(super) fn new(limit: WindowLimit, windows_per_topic: usize) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), limit, windows_per_topic }
    }

    /// Adds messages.
    pub(super) fn push(&self, items: impl IntoIterator<Item = Item>) {
        let mut state = self.lock();
        for item in items {
            let topic = item.message.topic.clone();
            state.topics.entry(topic.clone()).or_default().waiting.push_back(item);
            state.look_at(&topic, self.windows_per_topic);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that no more messages will arrive.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Waits for the next window for a lane. Returns `None` when the backlog is closed and empty.
    /// Call [`done`](Self::done) with its topic afterwards.
    pub(super) async fn next(&self) -> Option<(Topic, Window)> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(taken) = state.take(self.limit, self.windows_per_topic) {
                    return Some(taken);
                }
                if state.closed && state.topics.values().all(|queue| queue.waiting.is_empty()) {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Records that a window is answered.
    pub(super) fn done(&self, topic: &Topic) {
        let mut state = self.lock();
        state.busy -= 1;
        if let Some(queue) = state.topics.get_mut(topic) {
            queue.windows -= 1;
            if queue.windows == 0 && queue.waiting.is_empty() {
                state.topics.remove(topic);
            }
        }
        state.look_at(topic, self.windows_per_topic);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until a topic is ready and none of `lanes` lanes is free for it. Returns `false` when
    /// the backlog is closed and empty. Cancel-safe.
    pub(super) async fn wants_lane(&self, lanes: usize) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.lock();
                if state.ready.len() + state.busy > lanes {
                    return true;
                }
                if state.closed && state.topics.is_empty() {
                    return false;
                }
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Queues a topic for its turn if one of its messages may be sent.
    fn look_at(&mut self, topic: &Topic, windows_max: usize) {
        if let Some(queue) = self.topics.get_mut(topic)
            && !queue.is_ready
            && queue.windows < windows_max
            && !queue.waiting.is_empty()
        {
            queue.is_ready = true;
            self.ready.push_back(topic.clone());
        }
    }

    fn take(&mut self, limit: WindowLimit, windows_max: usize) -> Option<(Topic, Window)> {
        let topic = self.ready.pop_front()?;
        let queue = self.topics.get_mut(&topic)?;
        queue.is_ready = false;
        queue.windows += 1;
        self.busy += 1;
        let mut window = Window::new(limit);
        while let Some(item) = queue.waiting.pop_front() {
            // An empty window accepts any message, so at least one is sent.
            if let Some(item) = window.push(item) {
                queue.waiting.push_front(item);
                break;
            }
        }
        self.look_at(&topic, windows_max);
        Some((topic, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::window::tests::item;

    fn backlog() -> Backlog {
        Backlog::new(WindowLimit { messages_max: 2, bytes_max: 1 << 20 }, 2)
    }

    #[tokio::test]
    async fn windows_hold_one_topic_each_and_topics_take_turns() {
        let backlog = backlog();
        let items = ["a", "a", "a", "b", "a", "a"].map(|topic| item(topic, 1));
        backlog.push(items);
        let mut taken = Vec::new();
        for _ in 0..3 {
            let (topic, window) = backlog.next().await.unwrap();
            taken.push((topic.to_string(), window.into_items().len()));
        }
        assert_eq!(taken, [("a".into(), 2), ("b".into(), 1), ("a".into(), 2)]);
        assert!(futures_util::poll!(Box::pin(backlog.next())).is_pending(), "a has two windows under way");
        backlog.done(&Topic::new("a").unwrap());
        assert_eq!(backlog.next().await.unwrap().1.into_items().len(), 1);
    }

    #[tokio::test]
    async fn a_lane_is_wanted_when_a_topic_is_ready_and_none_is_free() {
        let backlog = backlog();
        backlog.push([item("a", 1)]);
        assert!(futures_util::poll!(Box::pin(backlog.wants_lane(1))).is_pending());
        let (topic, _window) = backlog.next().await.unwrap();
        assert!(futures_util::poll!(Box::pin(backlog.wants_lane(1))).is_pending());
        backlog.push([item("b", 1)]);
        assert!(backlog.wants_lane(1).await);
        let (other, _window) = backlog.next().await.unwrap();
        backlog.done(&other);
        backlog.close();
        assert!(backlog.next().await.is_none());
        backlog.done(&topic);
        assert!(!backlog.wants_lane(1).await);
    }
}
