//! A queue in memory that redelivers unsettled messages.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    Delivery, DeliveryToken, Disposition, Lag, Malformed, Message, Settlement, Subscription,
    SubscriptionError,
};
use tokio::sync::watch;

type Content = Result<Message, Malformed>;

#[derive(Clone)]
pub struct Broker {
    state: Arc<Mutex<State>>,
    changes: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct State {
    pending: VecDeque<(Content, bool)>,
    unsettled: BTreeMap<u64, Content>,
    settled: Vec<Content>,
    tokens: u64,
    session: u64,
    subscribed: u32,
    closed: u32,
    /// The session that has stopped receiving.
    stopped: Option<u64>,
    settle_calls_to_lose: u32,
    is_silent: bool,
}

impl Broker {
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        let pending = messages.into_iter().map(|message| (Ok(message), false)).collect();
        let state = State { pending, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), changes: Arc::new(watch::channel(()).0) }
    }

    pub fn send(&self, content: Content) {
        self.lock().pending.push_back((content, false));
        self.changes.send_replace(());
    }

    /// Breaks the session: unsettled messages are delivered again, in their order.
    pub fn lose_session(&self) {
        self.lock().break_session();
        self.changes.send_replace(());
    }

    /// Stops marking redeliveries; Kafka never marks them.
    pub fn says_nothing_of_redeliveries(&self) {
        self.lock().is_silent = true;
    }

    /// Loses the next `calls` calls that settle, and breaks the session at each.
    pub fn lose_settlements(&self, calls: u32) {
        self.lock().settle_calls_to_lose = calls;
    }

    /// Waits until nothing is pending or unsettled.
    pub async fn drained(&self) {
        self.until(|state| state.pending.is_empty() && state.unsettled.is_empty()).await;
    }

    /// Waits until exactly `count` deliveries are handed out and not settled.
    pub async fn in_hand(&self, count: usize) {
        self.until(|state| state.unsettled.len() == count).await;
    }

    /// Waits until at least `count` deliveries are settled.
    pub async fn settled_at_least(&self, count: usize) {
        self.until(|state| state.settled.len() >= count).await;
    }

    pub fn settled(&self) -> Vec<Content> {
        self.lock().settled.clone()
    }

    /// Returns three counts: settled deliveries, pending or unsettled ones, and closed
    /// subscriptions.
    pub fn counts(&self) -> (usize, usize, u32) {
        let state = self.lock();
        (state.settled.len(), state.pending.len() + state.unsettled.len(), state.closed)
    }

    pub fn subscriptions(&self) -> u32 {
        self.lock().subscribed
    }

    pub fn subscribe(&self) -> Box<dyn Subscription> {
        let mut state = self.lock();
        state.break_session();
        state.subscribed += 1;
        let number = state.session;
        drop(state);
        self.changes.send_replace(());
        Box::new(Session { broker: self.clone(), number })
    }

    /// Waits until there have been at least `count` subscriptions.
    pub async fn subscribed_at_least(&self, count: u32) {
        self.until(|state| state.subscribed >= count).await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if condition(&self.lock()) {
                return;
            }
            changes.changed().await.unwrap();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn break_session(&mut self) {
        self.session += 1;
        for (_, content) in std::mem::take(&mut self.unsettled).into_iter().rev() {
            self.pending.push_front((content, true));
        }
    }

    fn take(&mut self, max: NonZeroUsize) -> Vec<Delivery> {
        let count = max.get().min(self.pending.len());
        let (taken, is_silent) = (self.pending.drain(..count).collect::<Vec<_>>(), self.is_silent);
        taken
            .into_iter()
            .map(|(message, redelivered)| {
                self.tokens += 1;
                self.unsettled.insert(self.tokens, message.clone());
                let origin = format!("memory@{}", self.tokens);
                let redelivered = redelivered && !is_silent;
                Delivery { token: DeliveryToken(self.tokens), message, redelivered, origin }
            })
            .collect()
    }
}

struct Session {
    broker: Broker,
    number: u64,
}

impl Session {
    fn live(&self) -> Result<MutexGuard<'_, State>, SubscriptionError> {
        let state = self.broker.lock();
        if state.session == self.number {
            Ok(state)
        } else {
            Err(SubscriptionError::lost("the test broke the session"))
        }
    }
}

#[async_trait]
impl Subscription for Session {
    fn origin(&self) -> &str {
        "memory"
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let mut changes = self.broker.changes.subscribe();
        assert_ne!(self.live()?.stopped, Some(self.number), "it asked for no more");
        loop {
            changes.mark_unchanged();
            let taken = self.live()?.take(max);
            if !taken.is_empty() {
                self.broker.changes.send_replace(());
                return Ok(taken);
            }
            if tokio::time::timeout(wait, changes.changed()).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    fn lag(&self) -> Vec<Lag> {
        vec![Lag::new("orders", self.broker.lock().pending.len() as u64)]
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let mut state = self.live()?;
        if state.settle_calls_to_lose > 0 {
            state.settle_calls_to_lose -= 1;
            state.break_session();
            return Err(SubscriptionError::lost("the test lost the settlements"));
        }
        for settlement in &settlements {
            let content = state.unsettled.remove(&settlement.token().0).expect("a token in hand");
            match settlement.disposition() {
                Disposition::Done => state.settled.push(content),
                _ => state.pending.push_back((content, true)),
            }
        }
        drop(state);
        self.broker.changes.send_replace(());
        Ok(())
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        let state = self.live()?;
        assert!(tokens.iter().all(|token| state.unsettled.contains_key(&token.0)), "a stale token");
        Ok(())
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.live()?.stopped = Some(self.number);
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        let mut state = self.live()?;
        assert_eq!(state.stopped, Some(self.number), "closed cleanly, and not stopped before");
        state.closed += 1;
        state.break_session();
        Ok(())
    }
}
