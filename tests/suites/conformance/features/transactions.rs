//! A broker in memory that publishes in transactions, as Kafka does. Topics receive the messages of
//! a transaction when it is committed, together with its mark. A new session fences the previous
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use brokers::memory::Broker;
use message::{
    Capabilities, ClosedTransaction, MaxInFlightPerKey, Message, MessageId, PublishError, Publisher,
    Receipts, Submission, TransactionMark, TransactionScope, Transactions,
};

/// Maximum messages of a transaction: few, so that a short scene has many transactions.
const BATCH_LEN: usize = 8;

/// A log's identity, and a relay's name.
type Scope = (String, String);

/// The transactions of all relays that publish to one broker.
#[derive(Clone)]
pub(super) struct Cluster {
    broker: Broker,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    relays: BTreeMap<Scope, Relay>,
    refused: BTreeSet<MessageId>,
}

#[derive(Default)]
struct Relay {
    /// Counts the sessions of all processes. Only the latest session can commit.
    epoch: u64,
    mark: Option<TransactionMark>,
    open: Vec<Message>,
    closed: Option<Vec<Message>>,
}

impl Relay {
    /// Fences the previous session and drops its open transaction. Returns the new epoch.
    fn begin(&mut self) -> u64 {
        *self = Self { epoch: self.epoch + 1, mark: self.mark.take(), ..Self::default() };
        self.epoch
    }

    fn number(&self) -> u64 {
        self.mark.as_ref().map_or(0, |mark| mark.number)
    }
}

impl Cluster {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker, state: Arc::default() }
    }

    /// Refuses a message until the next [`heal`](Self::heal).
    pub(super) fn refuse(&self, id: MessageId) {
        self.lock().refused.insert(id);
    }

    pub(super) fn heal(&self) {
        self.lock().refused.clear();
    }

    /// Returns a connector for one process.
    pub(super) fn connector(&self) -> Connector {
        Connector { cluster: self.clone(), own: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connector of one process.
pub(super) struct Connector {
    cluster: Cluster,
    own: Mutex<Own>,
}

/// The state of one process.
#[derive(Default)]
struct Own {
    scope: Option<Scope>,
    /// The number of the last mark that this process knows.
    mark: u64,
    epoch: u64,
    sessions: u64,
    is_superseded: bool,
}

impl Connector {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        "memory"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let mut own = self.own();
        let Some(scope) = own.scope.clone() else {
            return Err(PublishError::session_lost("nobody has taken over these transactions"));
        };
        let mut state = self.cluster.lock();
        let relay = state.relays.entry(scope.clone()).or_default();
        own.epoch = relay.begin();
        if relay.number() != own.mark {
            own.is_superseded = true;
            return Err(PublishError::session_lost("another one has taken over"));
        }
        own.sessions += 1;
        let (cluster, epoch) = (self.cluster.clone(), own.epoch);
        Ok(Box::new(Session { cluster, scope, epoch, receipts, has_ended: false }))
    }
}

#[async_trait]
impl Transactions for Connector {
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        let mut own = self.own();
        let scope = (scope.log.clone(), scope.relay.clone());
        let mut state = self.cluster.lock();
        let relay = state.relays.entry(scope.clone()).or_default();
        relay.begin();
        *own = Own { scope: Some(scope), mark: relay.number(), sessions: own.sessions, ..Own::default() };
        Ok(relay.mark.clone())
    }

    fn session(&self) -> u64 {
        self.own().sessions
    }

    fn close(&self, session: u64) -> ClosedTransaction {
        let own = self.own();
        let mut state = self.cluster.lock();
        let relay = own.scope.as_ref().and_then(|scope| state.relays.get_mut(scope));
        if let Some(relay) = relay.filter(|relay| (own.sessions, own.epoch) == (session, relay.epoch)) {
            assert!(relay.closed.is_none(), "a transaction is closed while another one is committed");
            relay.closed = Some(std::mem::take(&mut relay.open));
        }
        ClosedTransaction { session, producer: 0 }
    }

    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        tokio::task::yield_now().await;
        let mut own = self.own();
        let mut state = self.cluster.lock();
        let relay = own.scope.as_ref().and_then(|scope| state.relays.get_mut(scope));
        let relay = relay.filter(|relay| (own.sessions, own.epoch) == (closed.session, relay.epoch));
        let Some((relay, messages)) = relay.and_then(|relay| relay.closed.take().map(|all| (relay, all)))
        else {
            return Err(PublishError::session_lost("the session of the transaction has ended"));
        };
        for message in messages {
            self.cluster.broker.put(&message.topic.clone(), Ok(message));
        }
        own.mark = mark.number;
        relay.mark = Some(mark);
        Ok(())
    }

    fn is_superseded(&self) -> bool {
        self.own().is_superseded
    }
}

struct Session {
    cluster: Cluster,
    scope: Scope,
    epoch: u64,
    receipts: Receipts,
    has_ended: bool,
}

#[async_trait]
impl Publisher for Session {
    fn profile(&self) -> Capabilities {
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::Pipelined, batch_len: BATCH_LEN }
    }

    /// Adds the whole batch to the open transaction. If this is impossible, adds none of it and
    /// ends the session.
    async fn submit(&mut self, batch: Vec<Submission>) {
        let mut state = self.cluster.lock();
        let State { relays, refused } = &mut *state;
        let relay = relays.get_mut(&self.scope).filter(|relay| relay.epoch == self.epoch && !self.has_ended);
        let is_refused = |submission: &Submission| refused.contains(&submission.message.id);
        match relay {
            Some(relay) if !batch.iter().any(is_refused) => {
                assert!(relay.open.is_empty(), "a second batch in one transaction");
                for Submission { ticket, message } in batch {
                    relay.open.push(Arc::unwrap_or_clone(message));
                    self.receipts.send(ticket, Ok(()));
                }
            }
            _ => {
                self.has_ended = true;
                for submission in batch {
                    let error = if is_refused(&submission) {
                        PublishError::refused("the test refuses this message")
                    } else {
                        PublishError::session_lost("the transaction was given up")
                    };
                    self.receipts.send(submission.ticket, Err(error));
                }
            }
        }
    }

    async fn close(self: Box<Self>, _: Duration) {}
}
