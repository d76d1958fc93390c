//! The seam of publishers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use checker::Promise;
use message::{Capabilities, Connector, MaxInFlightPerKey, PublishError, Publisher, Receipts, Submission};
use rand::Rng;
use tokio::time::Instant;

use crate::fault::Moment;
use crate::process::ProcessId;
use crate::world::{State, World, pass};

/// The broker, as one process reaches it.
#[derive(Debug)]
pub(crate) struct SimulatedBroker {
    pub(crate) world: Arc<World>,
    pub(crate) process: ProcessId,
}

#[async_trait]
impl Connector for SimulatedBroker {
    fn destination(&self) -> &str {
        "simulation"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let latency = self.world.lock().latency();
        pass(latency).await;
        let mut state = self.world.lock();
        if state.broker.is_down() {
            return Err(PublishError::session_lost("simulated: the broker is away"));
        }
        let warm_up = Duration::from_millis(state.rng.random_range(0..WARM_UP_MS));
        let number = state.broker.connect(self.process, receipts, warm_up);
        let profile = Capabilities {
            max_in_flight_per_key: state.broker.max_in_flight_per_key,
            batch_len: state.broker.submission_len,
        };
        state.note(format_args!("{} connects, session {number}", self.process));
        drop(state);
        let world = Arc::clone(&self.world);
        Ok(Box::new(SimulatedPublisher { world, process: self.process, number, profile }))
    }
}

/// Maximum delay of the first message. A real client first learns the leaders of partitions, and a
/// producer first gets its id.
const WARM_UP_MS: u64 = 150;

struct SimulatedPublisher {
    world: Arc<World>,
    process: ProcessId,
    number: u64,
    profile: Capabilities,
}

#[async_trait]
impl Publisher for SimulatedPublisher {
    fn profile(&self) -> Capabilities {
        self.profile
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        let (latency, stall_before) = {
            let mut state = self.world.lock();
            state.look_at_submission(self.process, self.number, &batch);
            (state.latency(), state.rng.random_range(0..batch.len().max(1)))
        };
        for (place, submission) in batch.into_iter().enumerate() {
            if place == stall_before && self.world.lock().stall(self.process, Moment::Publish) {
                self.world.broker_due.notify_one();
                tokio::task::yield_now().await;
            }
            self.world.lock().send(self.number, submission);
        }
        self.world.broker_due.notify_one();
        // Waits for room in the client's buffer.
        pass(latency).await;
    }

    async fn close(self: Box<Self>, _grace: Duration) {
        self.world.lock().sever(self.number, true);
    }
}

impl Drop for SimulatedPublisher {
    fn drop(&mut self) {
        self.world.lock().sever(self.number, false);
    }
}

impl State {
    /// Checks that the publisher keeps its rules.
    fn look_at_submission(&mut self, process: ProcessId, number: u64, batch: &[Submission]) {
        let names: Vec<_> = batch.iter().map(|submission| self.name(submission.message.id)).collect();
        self.note(format_args!("{process} publishes {names:?}"));
        if self.leases.get(&process).is_none_or(|until| *until <= Instant::now()) {
            self.found(Promise::Fencing, format!("{process} publishes {names:?} without the lease"));
        }
        for name in &names {
            *self.broker.sent.entry(*name).or_default() += 1;
        }
        let outstanding = self.broker.sessions.get(&number).map(|session| &session.outstanding);
        let outstanding: Vec<_> = outstanding.into_iter().flat_map(|out| out.values().cloned()).collect();
        let again =
            batch.iter().map(|one| one.message.id).find(|id| outstanding.iter().any(|(out, _)| out == id));
        if let Some(again) = again.map(|id| self.name(id)) {
            let text =
                format!("{process} publishes m{again} again while its session has yet to answer for it");
            self.found(Promise::Containment, text);
        }
        if self.broker.max_in_flight_per_key == MaxInFlightPerKey::Pipelined {
            return;
        }
        let mut keys: Vec<_> = outstanding.into_iter().filter_map(|(_, key)| key).collect();
        for submission in batch {
            let Some(key) = &submission.message.key else { continue };
            if keys.contains(key) {
                let text = format!("{process} publishes two messages of key {key} at once: {names:?}");
                return self.found(Promise::CausalOrder, text);
            }
            keys.push(key.clone());
        }
    }
}
