//! The thread of a subscription. It alone polls the consumer, so that heartbeats and rebalances
//! continue while a handler works, and commands never race with deliveries.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use message::{Disposition, Settlement, SubscriptionError};
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::oneshot;

use super::callbacks::{Callbacks, set_paused};
use super::commits::Commits;
use super::inflow::Inflow;
use super::ledger::Place;
use super::login::Login;
use super::reading::Next;
use super::{committed, offsets};

/// Maximum sleep of the thread. librdkafka wakes it for messages and the subscription for commands;
/// this only bounds the delay of other events.
const TURN: Duration = Duration::from_millis(100);
/// Number of empty polls in a row that show that the queue is empty. An event that is not a message
/// (a log line, a commit's answer, a rebalance) looks like an empty poll, and the queue wakes the
/// thread only if it was empty before.
const EMPTY_MAX: usize = 16;
/// Maximum number of events served before a topic counts as one without an id.
const LINES_MAX: usize = 1_000;
/// Maximum time for a seek, which needs no network.
const SEEK_MAX: Duration = Duration::from_secs(5);

/// Maximum time for which the last commit is retried while the group assigns its partitions.
const ASSIGNING_MAX: Duration = Duration::from_secs(5);
/// Time after which a commit that such a group has refused is tried again.
const COMMIT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A command of the subscription to its thread.
pub(super) enum Command {
    /// Something may have arrived, or there is room again.
    Wake,
    /// Settle these deliveries.
    Settle(Vec<Settlement>, oneshot::Sender<Result<(), SubscriptionError>>),
    /// Commit, leave the group and end.
    Close(oneshot::Sender<Result<(), SubscriptionError>>),
    /// The same, without an answer.
    Abandon,
}

/// Ends the subscription when it is dropped.
pub(super) struct EndOfDelivery(pub(super) Arc<Inflow>);

impl Drop for EndOfDelivery {
    fn drop(&mut self) {
        self.0.fail(message::Fault::Broker, String::from("the subscription has ended"));
    }
}

/// One subscription's consumer.
pub(super) struct Pump {
    /// Dropped before the consumer, which polls while it closes. Messages that it polls then reach
    /// no caller, so they must not move a position.
    pub(super) _end: EndOfDelivery,
    pub(super) consumer: BaseConsumer<Callbacks>,
    pub(super) inflow: Arc<Inflow>,
    pub(super) origin: String,
    pub(super) commits: Commits,
    pub(super) login: Login,
}

impl Pump {
    /// Waits until the cluster has answered. Blocks for at most `timeout`.
    pub(super) fn reach(&mut self, timeout: Duration) -> Result<(), SubscriptionError> {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            self.fill();
            self.inflow.check()?;
            if let Some(cluster) = self.consumer.client().fetch_cluster_id(Duration::from_millis(20)) {
                self.inflow.reached(cluster);
                return Ok(());
            }
        }
        let because = self.inflow.last_error().unwrap_or_else(|| String::from("no answer"));
        let text = format!("{} is not reachable within {} ms: {because}", self.origin, timeout.as_millis());
        Err(SubscriptionError::lost(text))
    }

    /// Makes librdkafka report the id of a topic, if the topic exists and the cluster has such ids.
    /// Blocks for at most about `timeout`. Nothing is subscribed yet, so polling returns no
    /// message.
    pub(super) fn learn(&self, topic: &str, timeout: Duration) -> Result<(), KafkaError> {
        committed::partitions(&self.consumer, topic, timeout)?;
        let is_learnt = || self.inflow.lock().topic_ids.knows(topic);
        // The line that reports it is in the queue by now.
        for _ in (0..LINES_MAX).take_while(|_| !is_learnt()) {
            drop(self.consumer.poll(Duration::ZERO));
        }
        Ok(())
    }

    /// Serves messages, events and commands until the subscription closes or is dropped.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(TURN) {
                Ok(Command::Wake) => {}
                Err(RecvTimeoutError::Timeout) => self.tell_idle(),
                Ok(Command::Settle(settlements, answer)) => {
                    // If the subscription was dropped meanwhile, no caller waits.
                    let _ = answer.send(self.settle(&settlements));
                }
                Ok(Command::Close(answer)) => {
                    let committed = self.finish(ASSIGNING_MAX);
                    drop(self);
                    let _ = answer.send(committed);
                    return;
                }
                Ok(Command::Abandon) | Err(RecvTimeoutError::Disconnected) => {
                    // The process may be subscribing again now.
                    if let Err(error) = self.finish(Duration::ZERO) {
                        tracing::warn!(target: "brokers::kafka", %error, "subscription dropped");
                    }
                    return;
                }
            }
            if let Err(error) = self.login.turn(self.consumer.client()) {
                self.inflow.fail(error.fault(), error.to_string());
            }
            self.pass_markers();
            self.commit_moved();
            self.fill();
        }
    }

    /// Logs that this member has no partitions.
    fn tell_idle(&self) {
        if self.inflow.lock().reading.is_worth_telling_idle(Instant::now()) {
            let origin = &self.origin;
            tracing::info!(target: "brokers::kafka", origin,
                "no partitions so far: other members of the group have them, or a member that ended without \
                 leaving the group keeps them until its session times out");
        }
    }

    /// Moves messages and events out of librdkafka while there is room.
    fn fill(&mut self) {
        let mut empty = 0;
        while empty < EMPTY_MAX && self.pace() {
            empty = if self.poll() { 0 } else { empty + 1 };
        }
    }

    /// Moves one message or event out of librdkafka. Returns whether it was a message or an error.
    fn poll(&self) -> bool {
        match self.consumer.poll(Duration::ZERO) {
            Some(Ok(record)) => self.inflow.push(&record),
            Some(Err(error)) => self.fail(&error),
            None => return false,
        }
        true
    }

    /// Pauses reading when the consumer does not take prefetched messages, and resumes it when
    /// there is room. Returns whether to poll.
    fn pace(&self) -> bool {
        let mut state = self.inflow.lock();
        let (since, room) = (state.reading.paused_since(), state.ahead.room());
        let next = state.reading.next(room, Instant::now());
        drop(state);
        let (places, paused) = match next {
            Next::Poll => return true,
            Next::Wait => return false,
            Next::Pause(places) => (places, true),
            Next::Resume(places) => (places, false),
        };
        let (origin, partitions) = (&self.origin, places.len());
        match since {
            None => {
                tracing::info!(target: "brokers::kafka", origin, partitions, "reading paused: the consumer takes no messages");
            }
            Some(since) => {
                let seconds = since.elapsed().as_secs();
                tracing::info!(target: "brokers::kafka", origin, partitions, seconds, "reading resumed");
            }
        }
        if let Err(error) = set_paused(&self.consumer, &places, paused) {
            let text = format!("{origin}: cannot pause or resume: {error}");
            self.inflow.fail(message::Fault::Broker, text);
        }
        true
    }

    /// Handles an error that the callback has already received with librdkafka's words. Only the
    /// end of the client matters here.
    fn fail(&self, error: &KafkaError) {
        match error {
            KafkaError::MessageConsumptionFatal(code) => {
                self.inflow.fail(message::Fault::Broker, format!("{}: cannot consume ({code})", self.origin));
            }
            error => tracing::debug!(target: "brokers::kafka", %error, "reported by the callback"),
        }
    }

    fn settle(&self, settlements: &[Settlement]) -> Result<(), SubscriptionError> {
        let mut back: HashMap<Place, i64> = HashMap::new();
        let mut state = self.inflow.lock();
        for settlement in settlements {
            if *settlement.disposition() == Disposition::Done {
                state.ledger.done(settlement.token());
            } else if let Some((place, offset)) = state.ledger.release(settlement.token()) {
                back.entry(place).and_modify(|at| *at = offset.min(*at)).or_insert(offset);
            }
        }
        if !back.is_empty() {
            state.discard_forgotten();
        }
        drop(state);
        self.rewind(&back)
    }

    /// Moves positions past offsets without a message, if it is time to check for them.
    fn pass_markers(&mut self) {
        if self.commits.look_for_markers(Instant::now()) {
            offsets::pass_markers(&self.consumer, &self.inflow);
        }
    }

    /// Commits positions that moved since the last commit. If that was very recent, a later
    /// iteration commits them.
    fn commit_moved(&mut self) {
        let now = Instant::now();
        let mut state = self.inflow.lock();
        let mut positions = Vec::new();
        if self.commits.repeat(now) {
            positions = state.ledger.positions();
        } else if self.commits.may_follow(now) {
            positions = state.ledger.moved();
            if !positions.is_empty() {
                self.commits.moved(now);
            }
        }
        drop(state);
        if let Err(error) = self.commit(&positions, CommitMode::Async) {
            self.inflow.fail(error.fault(), error.to_string());
        }
    }

    /// Continues reading from earlier offsets. Without this a released message would be redelivered
    /// only after a restart.
    fn rewind(&self, back: &HashMap<Place, i64>) -> Result<(), SubscriptionError> {
        for ((topic, partition), offset) in back {
            let sought = self.consumer.seek(topic, *partition, Offset::Offset(*offset), SEEK_MAX);
            if let Err(error) = sought {
                // Only a new subscription is certain to read it again: it begins at the committed
                // offset.
                let text =
                    format!("{}: cannot go back to {topic}[{partition}]@{offset}: {error}", self.origin);
                self.inflow.fail(message::Fault::Broker, text.clone());
                return Err(SubscriptionError::lost(text).with_source(error));
            }
        }
        Ok(())
    }

    fn commit(&self, positions: &[(Place, i64)], mode: CommitMode) -> Result<(), SubscriptionError> {
        if positions.is_empty() {
            return Ok(());
        }
        match offsets::commit(&self.consumer, &self.inflow, positions, mode) {
            Err(error) if error.rdkafka_error_code() != Some(Code::NoOffset) => {
                let text = format!("{}: offsets not committed: {error}", self.origin);
                Err(SubscriptionError::lost(text).with_source(error))
            }
            _ => Ok(()),
        }
    }

    /// Commits positions whose commit is not certain. The others are left out: an old position may
    /// belong to a topic that was recreated recently.
    ///
    /// A group refuses commits while it reassigns its partitions, for example when its members are
    /// stopped one after the other. Only polling takes part in that, so this polls until the group
    /// accepts them, or until `patience` is over.
    fn finish(&self, patience: Duration) -> Result<(), SubscriptionError> {
        offsets::pass_markers(&self.consumer, &self.inflow);
        let mut state = self.inflow.lock();
        state.left_uncommitted = false;
        let mut positions =
            if self.commits.are_repeated() { state.ledger.moved() } else { state.ledger.positions() };
        drop(state);
        let deadline = Instant::now() + patience;
        loop {
            match self.commit(&positions, CommitMode::Sync) {
                Err(error) if is_assigning(&error) && Instant::now() < deadline => {
                    std::thread::sleep(COMMIT_AGAIN_AFTER);
                    self.take_part();
                    // Revocations commit the positions of their partitions.
                    let state = self.inflow.lock();
                    if state.left_uncommitted {
                        return Err(error);
                    }
                    let mut kept = state.ledger.positions();
                    kept.retain(|(place, _)| positions.iter().any(|(uncommitted, _)| uncommitted == place));
                    positions = kept;
                }
                committed => return committed,
            }
        }
    }

    /// Takes part in the group's assignment without reading on.
    fn take_part(&self) {
        if let Ok(assigned) = self.consumer.assignment()
            && let Err(error) = self.consumer.pause(&assigned)
        {
            tracing::debug!(target: "brokers::kafka", %error, "reading continues during the last commit");
        }
        for _ in 0..EMPTY_MAX {
            self.poll();
        }
    }
}

/// Returns whether the group refused a commit because it is reassigning its partitions.
fn is_assigning(error: &SubscriptionError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<KafkaError>());
    let code = source.and_then(KafkaError::rdkafka_error_code);
    matches!(code, Some(Code::RebalanceInProgress | Code::IllegalGeneration))
}
