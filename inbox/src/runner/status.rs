//! Status of a consumer, for health probes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::overdue::Running;
use super::waits::{MessageWaits, Wait, WaitReason};
use crate::ids::ConsumerName;

/// Maximum age of the last iteration of a live loop. It iterates every few seconds, however long
/// its handlers take.
const ALIVE_MAX: Duration = Duration::from_secs(60);

/// Status of a consumer; made by [`Consumer::status`](super::Consumer::status). Cheap to clone and
/// to ask: it answers from memory.
///
/// Use [`is_alive`](Self::is_alive) for a liveness probe: a restart helps only when it is false.
/// Use [`is_ready`](Self::is_ready) for a readiness probe, and [`stalled_for`](Self::stalled_for)
/// for alerts; it also grows while the broker or the database is unavailable.
/// [`waits`](Self::waits) explains both.
#[derive(Debug, Clone)]
pub struct ConsumerStatus {
    consumer: ConsumerName,
    state: Arc<Mutex<State>>,
    waits: MessageWaits,
    /// Weak: the thread that watches handlers ends with the consumer, and not with its last status.
    handling: Weak<Running>,
}

#[derive(Debug)]
struct State {
    turned_at: Option<Instant>,
    /// The topics or the queue of the last session.
    reads: Option<String>,
    is_connected: bool,
    /// When it got or lost its session.
    connected_at: Instant,
    /// Why there is no session.
    error: Option<String>,
    /// Since when the broker has not answered a call.
    called_at: Option<Instant>,
    /// Since when the messages at the broker have been for other consumers.
    unassigned_at: Option<Instant>,
    in_hand: usize,
    /// Since when nothing has been in hand.
    idle_at: Instant,
    lag: Option<u64>,
    held_keys: Option<usize>,
    /// When it last settled something or had nothing to do.
    progressed_at: Instant,
    ended_at: Option<Instant>,
}

impl ConsumerStatus {
    pub(super) fn new(consumer: &ConsumerName, handling: &Arc<Running>) -> Self {
        let state = Arc::new(Mutex::new(State::new(Instant::now())));
        let handling = Arc::downgrade(handling);
        Self { consumer: consumer.clone(), state, waits: MessageWaits::default(), handling }
    }

    /// Returns the name of the consumer.
    #[must_use]
    pub fn consumer(&self) -> &ConsumerName {
        &self.consumer
    }

    /// Returns whether the consumer's loop is running. Returns false if the loop has not iterated
    /// for a minute, because a handler blocks the only thread of its runtime.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.state().is_alive(Instant::now())
    }

    /// Returns how long ago the consumer ended; `None` before it runs, while it runs, and if its
    /// future was dropped.
    #[must_use]
    pub fn ended_for(&self) -> Option<Duration> {
        self.state().ended_at.map(|at| at.elapsed())
    }

    /// Returns whether it has a session with the broker.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state().is_connected
    }

    /// Returns the number of unsettled deliveries.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.state().in_hand
    }

    /// Returns the number of messages that wait for it at the broker, if the broker reports it.
    #[must_use]
    pub fn lag(&self) -> Option<u64> {
        self.state().lag
    }

    /// Returns how long it has settled nothing although it had work, or had no session. It is at
    /// most a few seconds in normal operation.
    #[must_use]
    pub fn stalled_for(&self) -> Duration {
        self.state().progressed_at.elapsed()
    }

    /// Returns what it reads: the topics or the queue of its last session, with its group; `None`
    /// before the first one.
    #[must_use]
    pub fn reads(&self) -> Option<String> {
        self.state().reads.clone()
    }

    /// Returns the number of keys that have messages held behind a dead letter, when the consumer
    /// last counted them: every five minutes, and only if it holds keys. It continues to read other
    /// messages. `None` before.
    #[must_use]
    pub fn held_keys(&self) -> Option<usize> {
        self.state().held_keys
    }

    /// Returns whether it reads: its loop is running, it has a session, and it has not stalled for
    /// longer than `stalled_max`. Choose more than the time that its handlers may take.
    #[must_use]
    pub fn is_ready(&self, stalled_max: Duration) -> bool {
        self.is_alive() && self.is_connected() && self.stalled_for() <= stalled_max
    }

    /// Returns what it waits for now, the longest wait first: one [`Wait`] for each reason. Waits
    /// of milliseconds are normal. Empty before it runs, and once it has ended.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let now = Instant::now();
        let state = self.state();
        if state.turned_at.is_none() {
            return Vec::new();
        }
        let own = state.wait(now);
        drop(state);
        let handling = self.handling.upgrade();
        let handled = handling.as_ref().map(|handling| handling.messages()).unwrap_or_default();
        let mut waits = self.waits.by_reason(now, &handled);
        waits.extend(own);
        waits.extend(handling.and_then(|handling| handling.wait(std::time::Instant::now())));
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.waited));
        waits
    }

    /// Returns where messages in hand record what they wait for.
    pub(super) fn message_waits(&self) -> &MessageWaits {
        &self.waits
    }

    /// Records a new session.
    pub(super) fn connected(&self, reads: &str) {
        let mut state = self.state();
        state.reads = Some(reads.to_owned());
        state.error = None;
    }

    /// Records why there is no session.
    pub(super) fn disconnected(&self, error: String) {
        self.state().error = Some(error);
    }

    /// Records whether the broker has assigned it anything to read; `None` when unknown.
    pub(super) fn assigned(&self, is_assigned: Option<bool>) {
        let mut state = self.state();
        match is_assigned {
            Some(false) => _ = state.unassigned_at.get_or_insert_with(Instant::now),
            Some(true) | None => state.unassigned_at = None,
        }
    }

    /// Records a call to the broker; its end is [`answered`](Self::answered).
    pub(super) fn calls(&self) {
        self.state().called_at = Some(Instant::now());
    }

    /// Records the answer of the broker.
    pub(super) fn answered(&self) {
        self.state().called_at = None;
    }

    /// Records the number of keys that are held.
    pub(super) fn holds(&self, keys: usize) {
        self.state().held_keys = Some(keys);
    }

    /// Records an iteration of the loop.
    pub(super) fn turned(&self, is_connected: bool, in_hand: usize) {
        self.state().turned(Instant::now(), is_connected, in_hand);
    }

    /// Records that the running loop waits for the broker.
    pub(super) fn still_waits(&self) {
        if let Some(turned_at) = &mut self.state().turned_at {
            *turned_at = Instant::now();
        }
    }

    /// Records that deliveries were settled.
    pub(super) fn settled(&self) {
        self.state().progressed_at = Instant::now();
    }

    /// Records the number of messages at the broker; `None` when unknown.
    pub(super) fn lags(&self, lag: Option<u64>) {
        self.state().lag = lag;
    }

    /// Records that the loop ended.
    pub(super) fn ended(&self) {
        let mut state = self.state();
        state.turned_at = None;
        state.is_connected = false;
        state.ended_at = Some(Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(now: Instant) -> Self {
        Self {
            turned_at: None,
            reads: None,
            is_connected: false,
            connected_at: now,
            error: None,
            called_at: None,
            unassigned_at: None,
            in_hand: 0,
            idle_at: now,
            lag: None,
            held_keys: None,
            progressed_at: now,
            ended_at: None,
        }
    }

    /// Returns what the consumer itself waits for; `None` if only its messages do.
    fn wait(&self, now: Instant) -> Option<Wait> {
        let waited = |since: Instant| now.saturating_duration_since(since);
        if !self.is_connected {
            let wait = Wait::of(WaitReason::Broker, waited(self.connected_at));
            return Some(Wait { error: self.error.clone(), ..wait });
        }
        let own = match (self.called_at, self.unassigned_at) {
            (Some(since), _) => Some((WaitReason::Broker, since)),
            (None, Some(since)) => Some((WaitReason::Partition, since)),
            (None, None) if self.in_hand == 0 => Some((WaitReason::Message, self.idle_at)),
            (None, None) => None,
        };
        own.map(|(reason, since)| Wait::of(reason, waited(since)))
    }

    fn is_alive(&self, now: Instant) -> bool {
        self.turned_at.is_some_and(|turned_at| now.duration_since(turned_at) < ALIVE_MAX)
    }

    fn turned(&mut self, now: Instant, is_connected: bool, in_hand: usize) {
        let is_first = self.turned_at.replace(now).is_none();
        let is_new = is_first || self.is_connected != is_connected;
        if is_new {
            self.connected_at = now;
        }
        if is_new || (self.in_hand != 0 && in_hand == 0) {
            self.idle_at = now;
        }
        self.is_connected = is_connected;
        self.in_hand = in_hand;
        let has_none = self.unassigned_at.is_some() || self.lag.unwrap_or_default() == 0;
        if is_connected && in_hand == 0 && has_none {
            self.progressed_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::waits::Waited;

    #[test]
    fn it_stalls_with_work_and_without_a_session_and_not_when_idle() {
        let begun_at = Instant::now();
        let later = begun_at + 10 * ALIVE_MAX;
        for (is_connected, in_hand, lag, stalls) in [
            (true, 0, None, false),
            (true, 0, Some(0), false),
            (true, 3, Some(0), true),
            (true, 0, Some(7), true),
            (false, 0, None, true),
        ] {
            let mut state = State { lag, ..State::new(begun_at) };
            assert!(!state.is_alive(later), "its loop has not turned");
            state.turned(later, is_connected, in_hand);
            assert!(state.is_alive(later) && !state.is_alive(later + ALIVE_MAX));
            assert_eq!(state.progressed_at == begun_at, stalls, "{is_connected} {in_hand} {lag:?}");
        }
    }

    /// Goal: a standby does not stall while the active consumer works off a backlog, but does so
    /// with messages of its own in hand.
    #[test]
    fn it_does_not_stall_while_the_messages_are_for_others() {
        let begun_at = Instant::now();
        let later = begun_at + 10 * ALIVE_MAX;
        for (in_hand, stalls) in [(0, false), (3, true)] {
            let (lag, unassigned_at) = (Some(7), Some(begun_at));
            let mut state = State { lag, unassigned_at, ..State::new(begun_at) };
            state.turned(later, true, in_hand);
            assert_eq!(state.progressed_at == begun_at, stalls, "{in_hand}");
        }
    }

    fn reasons(status: &ConsumerStatus) -> Vec<(WaitReason, u64)> {
        status.waits().into_iter().map(|wait| (wait.reason, wait.waited.as_secs())).collect()
    }

    /// Goal: what the consumer waits for follows its session, its partitions and its messages.
    /// Oracle: the reasons, in virtual time.
    #[tokio::test(start_paused = true)]
    async fn it_says_what_it_waits_for_and_since_when() {
        let second = Duration::from_secs(1);
        let handling: Arc<Running> = Arc::default();
        let status = ConsumerStatus::new(&ConsumerName::new("billing").unwrap(), &handling);
        assert_eq!((reasons(&status), status.reads()), (Vec::new(), None), "it does not run yet");
        status.turned(false, 0);
        status.disconnected(String::from("connection refused"));
        tokio::time::advance(4 * second).await;
        assert_eq!(reasons(&status), [(WaitReason::Broker, 4)]);
        assert_eq!(status.waits()[0].error.as_deref(), Some("connection refused"));
        assert!(!status.is_ready(60 * second), "without a session it reads nothing");

        status.connected("orders (group billing)");
        status.assigned(Some(false));
        status.turned(true, 0);
        tokio::time::advance(2 * second).await;
        status.assigned(Some(false));
        assert_eq!(reasons(&status), [(WaitReason::Partition, 2)]);
        assert_eq!(status.reads().as_deref(), Some("orders (group billing)"));

        status.assigned(Some(true));
        status.turned(true, 0);
        tokio::time::advance(3 * second).await;
        assert_eq!(reasons(&status), [(WaitReason::Message, 5)], "idle since the session began");
        assert!(status.is_ready(60 * second));

        status.turned(true, 2);
        assert_eq!(reasons(&status), [], "it has work, and nothing waits");
        let message = message::MessageId::new();
        let retry = status.message_waits().enter(WaitReason::Retry, Waited::one(message));
        tokio::time::advance(second).await;
        status.calls();
        tokio::time::advance(second).await;
        assert_eq!(reasons(&status), [(WaitReason::Retry, 2), (WaitReason::Broker, 1)]);
        status.answered();
        let call = handling.enter(message);
        assert_eq!(status.waits()[1].to_string(), format!("handler of {message}: 0s"));
        drop((call, retry));
        tokio::time::advance(90 * second).await;
        assert!(!status.is_ready(60 * second), "it has settled nothing for longer");
        assert_eq!(status.ended_for(), None);
        status.ended();
        tokio::time::advance(second).await;
        assert_eq!((reasons(&status), status.ended_for()), (Vec::new(), Some(second)));
        assert_eq!(status.consumer().as_str(), "billing");
    }
}
