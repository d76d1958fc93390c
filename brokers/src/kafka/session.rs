//! A librdkafka producer and the thread that serves its callbacks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use message::{Fault, PublishError};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::producer::{BaseProducer, Producer as _, PurgeConfig};
use tokio::sync::oneshot;

use super::fault;
use super::login::Login;
use super::outcomes::Outcomes;
use crate::unreachable;

/// Time for which the thread serves callbacks before it checks for the end of the session.
///
/// The client library waits for whole milliseconds, and polls without waiting for the remaining
/// fraction. So the fraction is only as long as a thread takes to wake up: with 20 ms flat, an idle
/// relay spent 5 % of a core on it.
const TURN: Duration = Duration::from_micros(50_050);
/// Maximum time of one wait for the cluster's answer.
const SLICE: Duration = Duration::from_millis(20);
/// Maximum time that the thread waits at the end for the outcomes of purged messages.
const PURGE_MAX: Duration = Duration::from_secs(5);

/// The producer of one session. Dropping it never blocks: the thread does the rest.
pub(super) struct Session {
    producer: Option<Arc<BaseProducer<Outcomes>>>,
    stop: Sender<Arc<BaseProducer<Outcomes>>>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Session {
    /// Creates the producer and starts its thread. Blocks to read certificates.
    pub(super) fn open(
        config: &ClientConfig,
        outcomes: Outcomes,
        login: Login,
    ) -> Result<Self, PublishError> {
        let settings = |text: String| PublishError::new(Fault::Operator, message::FaultScope::Session, text);
        let producer = BaseProducer::from_config_and_context(config, outcomes)
            .map_err(|error| settings(fault::creation(&error)))?;
        login.give(producer.client())?;
        let producer = Arc::new(producer);
        producer.context().serves(&producer);
        let (stop, stopped) = channel();
        let (end, ended) = oneshot::channel();
        let served = Arc::clone(&producer);
        thread::Builder::new()
            .name(String::from("kafka-producer"))
            .spawn(move || {
                serve(&served, &stopped, login);
                drop(served);
                // If the session was dropped instead of closed, no caller waits.
                let _ = end.send(());
            })
            .map_err(|error| PublishError::session_lost("no thread for kafka").with_source(error))?;
        Ok(Self { producer: Some(producer), stop, ended: Some(ended) })
    }

    /// Returns the producer.
    pub(super) fn producer(&self) -> Option<&Arc<BaseProducer<Outcomes>>> {
        self.producer.as_ref()
    }

    /// Waits until the cluster has answered.
    ///
    /// Blocks for at most `timeout`.
    pub(super) fn reach(&self, timeout: Duration, destination: &str) -> Result<(), PublishError> {
        let Some(producer) = &self.producer else {
            return Err(PublishError::session_lost("the kafka session ended"));
        };
        let outcomes = producer.context();
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if outcomes.failed() {
                return Err(outcomes.lost());
            }
            // In slices: the client library does not wake up when the answer arrives without any
            // topic.
            if producer.client().fetch_cluster_id(SLICE).is_some() {
                outcomes.connected();
                return Ok(());
            }
        }
        let because = outcomes.last_error().unwrap_or_else(|| String::from("no answer"));
        Err(PublishError::session_lost(format!(
            "{destination} is not reachable within {} ms: {because}; {}",
            timeout.as_millis(),
            unreachable::advice(&because, "kafka.bootstrap_servers")
        )))
    }

    /// Ends the session; unconfirmed messages get their outcomes. Waits for the thread.
    /// Cancel-safe.
    pub(super) async fn end(mut self) {
        let ended = self.ended.take();
        drop(self);
        if let Some(ended) = ended {
            // An error means that the thread has already ended.
            let _ = ended.await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            producer.context().fail(Fault::Broker, "the kafka session was closed before the confirmation");
            // Handed to the thread, because destroying a producer blocks. Without the thread it
            // blocks here.
            let _ = self.stop.send(producer);
        }
    }
}

/// Serves callbacks until the session is dropped. Purges messages that a failed session still
/// holds.
fn serve(
    producer: &Arc<BaseProducer<Outcomes>>,
    stopped: &Receiver<Arc<BaseProducer<Outcomes>>>,
    mut login: Login,
) {
    loop {
        producer.poll(TURN);
        let kept = login.turn(producer.client());
        let outcomes = producer.context();
        if let Err(error) = kept {
            outcomes.fail(error.fault(), error.to_string());
        }
        if !outcomes.failed()
            && let Some((code, reason)) = producer.client().fatal_error()
        {
            let error = fault::session(code, &reason);
            outcomes.fail(error.fault(), error.to_string());
        }
        if outcomes.failed() && producer.in_flight_count() > 0 {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
        match stopped.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(_) | Err(TryRecvError::Disconnected) => break,
        }
    }
    let deadline = Instant::now() + PURGE_MAX;
    while producer.in_flight_count() > 0 && Instant::now() < deadline {
        producer.purge(PurgeConfig::default().queue().inflight());
        producer.poll(TURN);
    }
}
