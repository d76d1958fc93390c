//! The loop that drives a subscription.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use message::crash_points::reached;
use message::{Delivery, DeliveryToken, Settlement};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::broker_session::{BrokerSession, Event, SubscriptionFactory};
use super::builder::BuildError;
use super::held_keys::HeldLook;
use super::key_queues::{Held, KeyQueues, Lane};
use super::lag::{self, LagGauges};
use super::many::Sorted;
use super::options::RunnerOptions;
use super::shutdown::Shutdown;
use super::single::Done;
use super::store::Store;
use super::worker::Worker;
use crate::attempts::error_text;
use crate::crash_points;
use crate::minutes;

/// Default interval at which the broker is told that deliveries are being worked on. It is shorter
/// if the subscription requires that.
const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(10);

/// Maximum time spent on operators' redrives, and then on held messages, before switching to the
/// other.
const REDRIVING_MAX: Duration = Duration::from_secs(10);

/// Time limit for storing the counts when a consumer stops.
const LAST_COUNTS_MAX: Duration = Duration::from_secs(1);

/// Why a consumer ended other than by a graceful shutdown. Nothing is lost: unsettled deliveries
/// come again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It was aborted.
    #[error("the consumer was aborted with {unsettled} deliveries unsettled")]
    Aborted {
        /// Number of unsettled deliveries.
        unsettled: usize,
    },
    /// The broker would redeliver messages that are still being worked on.
    #[error(
        "{origin} redelivers what is unsettled for {redelivers_after:?}, but is told only every {keep_alive_interval:?} that \
         deliveries are being worked on; set keep_alive_interval to at most {:?}, or raise the broker's visibility timeout",
        .redelivers_after.div_f32(2.0)
    )]
    KeepAliveTooSeldom {
        /// The subscription.
        origin: String,
        /// How often the broker is told.
        keep_alive_interval: Duration,
        /// How long the broker waits.
        redelivers_after: Duration,
    },
    /// The consumer could not be built; nothing ran.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A worker ended without a result: a defect of this crate.
    #[error("a worker of the consumer failed")]
    Worker(#[from] JoinError),
}

/// The result of a worker.
enum Finished {
    One(Box<Held>, Option<Done>),
    Many(Sorted),
}

/// The next event for the loop.
enum Step {
    Abort,
    Stop,
    Finished(Result<Finished, JoinError>),
    BrokerSession(Event),
    KeepAlive,
    AskLag,
}

pub(super) struct Drive<S> {
    worker: Arc<Worker<S>>,
    settings: RunnerOptions,
    shutdown: Shutdown,
    broker_session: BrokerSession,
    key_queues: KeyQueues,
    batchable: VecDeque<Held>,
    is_batch_running: bool,
    running: JoinSet<Finished>,
    /// Deliveries of the current session that are not settled yet.
    unsettled: BTreeSet<DeliveryToken>,
    session: u64,
    /// Number of deliveries received in the current session, by place (a partition, a queue);
    /// without those that ended as duplicates or as chunks that are kept.
    seen: HashMap<String, usize>,
    /// Cancelled when the current session is lost, because its waiting deliveries come again.
    give_up: CancellationToken,
    lag: LagGauges,
}

impl<S: Store> Drive<S> {
    pub(super) fn new(
        worker: Arc<Worker<S>>,
        factory: SubscriptionFactory,
        settings: RunnerOptions,
        shutdown: Shutdown,
    ) -> Self {
        let broker_session = BrokerSession::new(factory, worker.host.clone());
        Self {
            lag: LagGauges::new(&worker.consumer),
            worker,
            settings,
            broker_session,
            key_queues: KeyQueues::default(),
            batchable: VecDeque::new(),
            is_batch_running: false,
            running: JoinSet::new(),
            unsettled: BTreeSet::new(),
            session: 0,
            seen: HashMap::new(),
            give_up: shutdown.graceful.child_token(),
            shutdown,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), RunError> {
        let (maintenance, redrives, counts) = (self.maintain(), self.redrive(), self.store_counts());
        let result = self.receive_and_settle().await;
        drop((maintenance, redrives, counts));
        self.running.abort_all();
        self.worker.meter.held(0);
        self.worker.status.ended();
        self.lag.clear();
        // Counts are not worth a long wait. Boxed, because this future is part of every caller's
        // future.
        _ = tokio::time::timeout(LAST_COUNTS_MAX, Box::pin(self.worker.store_counts())).await;
        result?;
        if let Err(error) = self.broker_session.close().await {
            tracing::warn!(error = error_text(&error), "the subscription was not closed in order");
        }
        Ok(())
    }

    async fn receive_and_settle(&mut self) -> Result<(), RunError> {
        let (mut ticks, mut lag_ticks) = (ticks(KEEP_ALIVE_DEFAULT), ticks(lag::ASK_EVERY));
        let mut is_stopping = false;
        loop {
            if is_stopping {
                self.release_queued().await;
                if self.running.is_empty() {
                    return Ok(());
                }
            } else {
                self.dispatch();
            }
            match self.next(&mut ticks, &mut lag_ticks, is_stopping).await {
                Step::Abort => return Err(RunError::Aborted { unsettled: self.unsettled.len() }),
                Step::Stop => {
                    tracing::info!(consumer = %self.worker.consumer, in_hand = self.unsettled.len(), "stopping");
                    is_stopping = true;
                    self.stop_receiving().await;
                }
                Step::Finished(first) => self.finished(first).await?,
                Step::BrokerSession(Event::Deliveries(deliveries)) => self.take(deliveries),
                Step::BrokerSession(Event::Up) => {
                    ticks = self::ticks(self.keep_alive_interval()?);
                    self.session_changed();
                    self.ask_lag();
                }
                Step::BrokerSession(Event::Lost) => {
                    self.worker.meter.session_lost();
                    self.session_changed();
                }
                Step::KeepAlive => self.keep_alive().await,
                Step::AskLag => self.ask_lag(),
            }
            self.worker.meter.held(self.unsettled.len());
            let is_connected = self.broker_session.subscription().is_some();
            self.worker.status.turned(is_connected, self.unsettled.len());
        }
    }

    async fn next(&mut self, ticks: &mut Interval, lag: &mut Interval, is_stopping: bool) -> Step {
        let room = self.settings.prefetch.get().saturating_sub(self.unsettled.len());
        let Self { shutdown, running, broker_session, .. } = self;
        // In this order: after an abort nothing is settled, and finished work goes before new work.
        tokio::select! {
            biased;
            () = shutdown.abort.cancelled() => Step::Abort,
            () = shutdown.graceful.cancelled(), if !is_stopping => Step::Stop,
            Some(finished) = running.join_next() => Step::Finished(finished),
            _ = ticks.tick() => Step::KeepAlive,
            _ = lag.tick() => Step::AskLag,
            event = broker_session.next(NonZeroUsize::new(room)), if !is_stopping => Step::BrokerSession(event),
        }
    }

    /// Returns the keep-alive interval for this session's broker. A delivery may have waited for
    /// half of its visibility timeout before it is handed out, so the interval must fit into the
    /// other half.
    fn keep_alive_interval(&mut self) -> Result<Duration, RunError> {
        let chosen = self.settings.keep_alive_interval;
        let Some(subscription) = self.broker_session.subscription() else { return Ok(KEEP_ALIVE_DEFAULT) };
        match (chosen, subscription.redelivers_after()) {
            (Some(keep_alive_interval), Some(redelivers_after))
                if keep_alive_interval > redelivers_after / 2 =>
            {
                let origin = subscription.origin().to_owned();
                Err(RunError::KeepAliveTooSeldom { origin, keep_alive_interval, redelivers_after })
            }
            (Some(chosen), _) => Ok(chosen),
            (None, Some(redelivers_after)) => Ok(KEEP_ALIVE_DEFAULT.min(redelivers_after / 3)),
            (None, None) => Ok(KEEP_ALIVE_DEFAULT),
        }
    }

    fn take(&mut self, deliveries: Vec<Delivery>) {
        self.worker.meter.received(deliveries.len());
        for mut delivery in deliveries {
            self.worker.adopt(&mut delivery);
            tracing::debug!(consumer = %self.worker.consumer, message_id = %delivery.subject(),
                origin = delivery.origin, redelivered = delivery.redelivered, "received");
            self.unsettled.insert(delivery.token);
            let is_suspect = self.is_suspect(&delivery);
            let lane = delivery.message.as_ref().ok();
            let lane = lane.and_then(|message| Lane::of(message, self.worker.tenant(message).ok()));
            let held = Held { delivery, session: self.session, lane, is_suspect };
            let is_single = held.delivery.message.is_err() || self.key_queues.is_busy(held.lane.as_ref());
            if self.settings.batch.is_none() || is_single {
                self.key_queues.push(held);
            } else {
                self.batchable.push_back(held);
            }
        }
    }

    /// Returns whether another process may have had a delivery in hand when it ended: the broker
    /// flags a redelivery, or the delivery is among the first of its place. Kafka flags nothing. Of
    /// the messages that it redelivers, a process with this prefetch had at most so many in hand;
    /// the others were settled, behind one that was not, and come as duplicates or as chunks that
    /// are kept.
    fn is_suspect(&mut self, delivery: &Delivery) -> bool {
        let place = place_of(delivery);
        let seen = match self.seen.get_mut(place) {
            Some(seen) => seen,
            None => self.seen.entry(place.to_owned()).or_default(),
        };
        *seen = seen.saturating_add(1);
        delivery.redelivered || *seen <= self.settings.prefetch.get()
    }

    /// Starts workers, up to the limits.
    fn dispatch(&mut self) {
        while let Some(held) = self.key_queues.next() {
            let (worker, give_up) = (Arc::clone(&self.worker), self.give_up.clone());
            let host = self.worker.host.clone();
            self.running.spawn(host.run(async move {
                let done = worker.run_one(&held, &give_up).await.ok();
                Finished::One(Box::new(held), done)
            }));
        }
        let Some(batch_max) = self.settings.batch else { return };
        if self.is_batch_running || self.batchable.is_empty() {
            return;
        }
        let batch: Vec<_> = self.batchable.drain(..batch_max.get().min(self.batchable.len())).collect();
        let (worker, give_up) = (Arc::clone(&self.worker), self.give_up.clone());
        self.is_batch_running = true;
        let host = self.worker.host.clone();
        self.running.spawn(host.run(async move { Finished::Many(worker.run_many(batch, &give_up).await) }));
    }

    /// Collects all finished work and settles it in one call.
    async fn finished(&mut self, first: Result<Finished, JoinError>) -> Result<(), RunError> {
        let mut settlements = Vec::new();
        let mut next = Some(first);
        while let Some(finished) = next {
            match finished? {
                Finished::One(held, done) => {
                    self.key_queues.finished(&held);
                    settlements.extend(self.settlement(&held, done));
                }
                Finished::Many(sorted) => self.sorted(sorted, &mut settlements),
            }
            next = self.running.try_join_next();
        }
        self.settle(settlements).await;
        Ok(())
    }

    fn sorted(&mut self, sorted: Sorted, settlements: &mut Vec<Settlement>) {
        self.is_batch_running = false;
        for (held, done) in sorted.settled {
            settlements.extend(self.settlement(&held, Some(done)));
        }
        for held in sorted.released {
            settlements.extend(self.settlement(&held, None));
        }
        let is_present = |held: &Held| held.session == self.session;
        sorted.singles.into_iter().filter(is_present).for_each(|held| self.key_queues.push(held));
        // A delivery received meanwhile goes into the lane of a single delivery that it follows.
        let (behind, batchable) = std::mem::take(&mut self.batchable)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| self.key_queues.is_busy(held.lane.as_ref()));
        self.batchable = batchable;
        behind.into_iter().for_each(|held| self.key_queues.push(held));
    }

    /// Returns `None` for a delivery of a lost session: its token is no longer valid, and the
    /// message comes again.
    fn settlement(&mut self, held: &Held, done: Option<Done>) -> Option<Settlement> {
        let token = held.delivery.token;
        if held.session != self.session || !self.unsettled.contains(&token) {
            return None;
        }
        let Some(Done { proof, is_handled }) = done else { return Some(Settlement::release(token)) };
        if !is_handled && let Some(seen) = self.seen.get_mut(place_of(&held.delivery)) {
            *seen = seen.saturating_sub(1);
        }
        match Settlement::done(&held.delivery, proof) {
            Ok(settlement) => Some(settlement),
            Err(error) => {
                tracing::error!(error = error_text(&error), "handed back: the proof is another message's");
                Some(Settlement::release(token))
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) {
        let Some(subscription) = self.broker_session.subscription() else { return };
        if settlements.is_empty() {
            return;
        }
        let is_release = |s: &&Settlement| *s.disposition() == message::Disposition::Release;
        let released = settlements.iter().filter(is_release).count();
        let settled = settlements.len() - released;
        let tokens: Vec<_> = settlements.iter().map(Settlement::token).collect();
        match subscription.settle(settlements).await {
            Ok(()) => {
                reached(crash_points::AFTER_SETTLE);
                tracing::debug!(consumer = %self.worker.consumer, settled, released, "settled");
                self.worker.meter.settled(settled);
                if settled > 0 {
                    self.worker.status.settled();
                }
                self.worker.meter.released(released);
                tokens.iter().for_each(|token| {
                    self.unsettled.remove(token);
                });
            }
            Err(error) => self.lost(&error),
        }
    }

    /// Stops receiving before anything is released: a broker that pushes would deliver it here
    /// again.
    async fn stop_receiving(&mut self) {
        let Some(subscription) = self.broker_session.subscription() else { return };
        if let Err(error) = subscription.stop_receiving().await {
            tracing::warn!(
                error = error_text(&error),
                "the broker goes on delivering until the session ends"
            );
        }
    }

    async fn release_queued(&mut self) {
        let mut queued = self.key_queues.drain();
        queued.extend(self.batchable.drain(..));
        let releases = queued.iter().filter_map(|held| self.settlement(held, None)).collect();
        self.settle(releases).await;
    }

    async fn keep_alive(&mut self) {
        let tokens: Vec<_> = self.unsettled.iter().copied().collect();
        let Some(subscription) = self.broker_session.subscription() else { return };
        if !tokens.is_empty()
            && let Err(error) = subscription.keep_alive(&tokens).await
        {
            self.lost(&error);
        }
    }

    fn ask_lag(&mut self) {
        match self.broker_session.subscription() {
            Some(subscription) => {
                let lag = subscription.lag();
                let waiting = lag.iter().map(|lag| lag.messages).reduce(u64::saturating_add);
                self.worker.status.lags(waiting);
                self.lag.set(&lag);
            }
            None => self.lag.clear(),
        }
    }

    fn lost(&mut self, error: &message::SubscriptionError) {
        self.worker.meter.session_lost();
        self.broker_session.lost(error);
        self.session_changed();
    }

    /// Forgets the state of the old session. Running work continues and keeps its lane; waiting
    /// work ends.
    fn session_changed(&mut self) {
        self.session += 1;
        self.seen.clear();
        self.worker.status.lags(None);
        self.lag.clear();
        self.give_up.cancel();
        self.give_up = self.shutdown.graceful.child_token();
        self.unsettled.clear();
        drop(self.key_queues.drain());
        self.batchable.clear();
    }

    fn redrive(&self) -> Option<AbortOnDropHandle<()>> {
        let period = self.settings.redrive_interval?;
        let worker = Arc::clone(&self.worker);
        let host = self.worker.host.clone();
        Some(AbortOnDropHandle::new(host.spawn(async move {
            let (mut look, mut after, mut is_more) = (HeldLook::default(), None, false);
            loop {
                if !is_more {
                    tokio::time::sleep(period).await;
                }
                // Redrives and held messages each have their own time limit, so neither blocks the
                // other. The permit is one of those for deliveries. So no more handlers run at once
                // than configured, and none runs beside a message that must be alone.
                let Ok(_permit) = worker.permits.acquire().await else { return };
                let ends_at = Instant::now() + REDRIVING_MAX;
                let requested = worker.store.redrive_requested(after.unwrap_or_default(), ends_at);
                after = watched("redrives that were requested", requested).await.flatten();
                let ends_at = Instant::now() + REDRIVING_MAX;
                let held = watched("held messages", worker.redrive_held(&mut look, ends_at)).await;
                is_more = after.is_some() || held.unwrap_or_default();
            }
        })))
    }

    fn store_counts(&self) -> AbortOnDropHandle<()> {
        let worker = Arc::clone(&self.worker);
        let host = self.worker.host.clone();
        AbortOnDropHandle::new(host.spawn(async move {
            loop {
                tokio::time::sleep(minutes::STORE_EVERY).await;
                worker.store_counts().await;
            }
        }))
    }

    fn maintain(&self) -> Option<AbortOnDropHandle<()>> {
        let period = self.settings.maintain_interval?;
        let worker = Arc::clone(&self.worker);
        let host = self.worker.host.clone();
        Some(AbortOnDropHandle::new(host.spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                watched("the maintenance of the inbox", worker.store.maintain()).await;
            }
        })))
    }
}

/// Returns the place that a delivery comes from: its partition or queue.
fn place_of(delivery: &Delivery) -> &str {
    delivery.origin.split('@').next().unwrap_or_default()
}

/// Runs background work and logs its failure. Work that fails or panics is tried again at the next
/// interval: if the task ended silently, that would go unnoticed until its work is needed.
async fn watched<T, E: std::error::Error + 'static>(
    what: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(done)) => Some(done),
        Ok(Err(error)) => {
            tracing::error!(error = error_text(&error), "failed, and is tried again: {what}");
            None
        }
        Err(_) => {
            tracing::error!("panicked, and is tried again: {what}");
            None
        }
    }
}

fn ticks(interval: Duration) -> Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
