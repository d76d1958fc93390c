//! The loop that drives a subscription: receives deliveries and starts workers on them.

mod background;
mod broker_call;
mod session;
mod settle;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::{Delivery, DeliveryToken, finite};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::broker_call::answered;
use self::session::KEEP_ALIVE_DEFAULT;
use super::batch::Sorted;
use super::broker_session::{BrokerSession, Event, SubscriptionFactory};
use super::key_queues::{Held, KeyQueues, Lane};
use super::lag::{self, LagGauges};
use super::options::RunnerOptions;
use super::run_error::RunError;
use super::shutdown::Shutdown;
use super::step::Done;
use super::store::Store;
use super::worker::Worker;
use crate::error_text::error_text;

/// Number of sessions whose prefetched deliveries may have workers at the same time: the current
/// one, and what is left of lost ones.
const WORKERS_OF_SESSIONS: usize = 2;

/// Time limit for storing the counts when a consumer stops.
const LAST_COUNTS_MAX: Duration = Duration::from_secs(1);

/// The result of a worker.
enum Finished {
    One(Box<Held>, Option<Done>),
    Batch(Sorted),
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

/// The loop of one consumer, and the deliveries that it has in hand.
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
    /// without those that ended as duplicates or as stored chunks.
    seen: HashMap<String, usize>,
    /// Cancelled when the current session is lost, because its waiting deliveries are repeated; and
    /// at a stop, but only when nothing is received any more. Otherwise the next message of a key
    /// could begin here after the first one was handed back.
    give_up: CancellationToken,
    /// Cancelled at a stop: no redrive begins while the stop waits for running handlers.
    draining: CancellationToken,
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
            give_up: CancellationToken::new(),
            draining: CancellationToken::new(),
            shutdown,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), RunError> {
        let background = self.begin_background();
        let result = self.receive_and_settle().await;
        if result.is_ok() {
            tokio::select! {
                biased;
                () = self.shutdown.abort.cancelled() => {}
                () = Box::pin(background.end(&self.worker)) => {}
            }
        } else {
            drop(background);
        }
        self.running.abort_all();
        self.worker.meter.held(0);
        self.worker.status.ended();
        self.lag.clear();
        // Counts are not worth a long wait. Boxed, because this future is part of every caller's
        // future.
        _ = tokio::time::timeout(LAST_COUNTS_MAX, Box::pin(self.worker.store_counts())).await;
        result?;
        let closing = answered(&self.shutdown.abort, &self.worker.status, self.broker_session.close());
        if let Some(Err(error)) = closing.await {
            tracing::warn!(error = error_text(&error), "the subscription was not closed cleanly");
        }
        Ok(())
    }

    async fn receive_and_settle(&mut self) -> Result<(), RunError> {
        let mut keep_alive = ticks(KEEP_ALIVE_DEFAULT);
        let mut lag_ticks = ticks(lag::ASK_EVERY);
        let mut is_stopping = false;
        // It is alive before the first session, however long that takes.
        self.worker.status.turned(false, 0);
        loop {
            if is_stopping {
                self.release_queued().await;
                let is_cut_off = self.shutdown.abort.is_cancelled() && !self.unsettled.is_empty();
                if self.running.is_empty() && !is_cut_off {
                    return Ok(());
                }
            } else {
                self.dispatch();
            }
            match self.next(&mut keep_alive, &mut lag_ticks, is_stopping).await {
                Step::Abort => return Err(RunError::Aborted { unsettled: self.unsettled.len() }),
                Step::Stop => {
                    tracing::info!(consumer = %self.worker.consumer, in_hand = self.unsettled.len(), "stopping");
                    is_stopping = true;
                    self.draining.cancel();
                    self.worker.store.begin_no_redrives();
                    self.stop_receiving().await;
                    self.give_up.cancel();
                }
                Step::Finished(first) => self.finished(first).await?,
                Step::BrokerSession(Event::Deliveries(deliveries)) => self.take(deliveries),
                Step::BrokerSession(Event::Up) => {
                    keep_alive = ticks(self.keep_alive_interval()?);
                    self.session_changed();
                    self.ask_lag();
                }
                Step::BrokerSession(Event::Lost) => {
                    self.worker.meter.session_lost();
                    self.session_changed();
                }
                Step::KeepAlive => {
                    self.keep_alive().await;
                    // If a call took as long as the interval, finished work would never be
                    // processed.
                    keep_alive.reset();
                }
                Step::AskLag => self.ask_lag(),
            }
            self.worker.meter.held(self.unsettled.len());
            let is_connected = self.broker_session.subscription().is_some();
            self.worker.status.turned(is_connected, self.unsettled.len());
        }
    }

    async fn next(&mut self, keep_alive: &mut Interval, lag: &mut Interval, is_stopping: bool) -> Step {
        let room = self.settings.prefetch.get().saturating_sub(self.unsettled.len());
        let Self { shutdown, running, broker_session, .. } = self;
        // In this order: after an abort nothing is settled, finished work goes before new work, and
        // deliveries are kept alive however often short handlers finish.
        tokio::select! {
            biased;
            () = shutdown.abort.cancelled() => Step::Abort,
            () = shutdown.graceful.cancelled(), if !is_stopping => Step::Stop,
            _ = keep_alive.tick() => Step::KeepAlive,
            Some(finished) = running.join_next() => Step::Finished(finished),
            _ = lag.tick() => Step::AskLag,
            event = broker_session.next(NonZeroUsize::new(room)), if !is_stopping => Step::BrokerSession(event),
        }
    }

    fn take(&mut self, deliveries: Vec<Delivery>) {
        self.worker.meter.received(deliveries.len());
        for mut delivery in deliveries {
            self.worker.reader.adopt(&mut delivery);
            tracing::debug!(consumer = %self.worker.consumer, message_id = %delivery.subject(),
                origin = delivery.origin, redelivered = delivery.redelivered, "received");
            self.unsettled.insert(delivery.token);
            let is_suspect = self.is_suspect(&delivery);
            let lane = delivery.message.as_ref().ok();
            let lane = lane.and_then(|message| Lane::of(message, self.worker.reader.tenant(message).ok()));
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
    /// the messages that it redelivers, a process had at most `prefetch` in hand. The others were
    /// settled after one that was not, and arrive as duplicates or as stored chunks.
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
        // Workers of lost sessions need time to end while the database does not answer. The
        // deliveries in the queues go with their session, so memory stays bounded.
        let workers_max = self.settings.prefetch.get().saturating_mul(WORKERS_OF_SESSIONS);
        while self.running.len() < workers_max
            && let Some(held) = self.key_queues.next()
        {
            let worker = Arc::clone(&self.worker);
            let give_up = self.give_up.clone();
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
        let worker = Arc::clone(&self.worker);
        let give_up = self.give_up.clone();
        self.is_batch_running = true;
        let host = self.worker.host.clone();
        self.running.spawn(host.run(async move { Finished::Batch(worker.run_batch(batch, &give_up).await) }));
    }
}

/// Returns the place that a delivery comes from: its partition or queue.
fn place_of(delivery: &Delivery) -> &str {
    delivery.origin.split('@').next().unwrap_or_default()
}

fn ticks(interval: Duration) -> Interval {
    let interval = finite(interval);
    let mut ticks = tokio::time::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_keep_alive_may_be_switched_off_by_an_endless_interval() {
        let mut ticks = ticks(Duration::MAX);
        let ticked = tokio::time::timeout(Duration::from_secs(86_400), ticks.tick()).await;
        assert!(ticked.is_err());
        ticks.reset();
    }
}
