//! A publishing session: submissions go into a backlog, and lanes take windows out of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;
use message::{Capabilities, MaxInFlightPerKey, Publisher, Receipts, Submission};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::confirm::Break;
use super::connection::Connection;
use super::lane::{Lane, Session};
use super::window::Item;
use crate::pending::Pending;

/// Maximum time for the goodbye to the broker where the caller sets none.
pub(super) const GOODBYE: Duration = Duration::from_secs(1);

/// Maximum lanes on one connection; each is a channel. This many windows may be silent at once
/// before others wait for them.
const LANES_MAX: usize = 64;

/// A session with RabbitMQ. Dropping it ends its tasks; their messages are answered as unknown.
pub(super) struct RabbitmqPublisher {
    profile: Capabilities,
    receipts: Receipts,
    session: Arc<Session>,
    lanes: JoinSet<()>,
    connections: Vec<Arc<Connection>>,
}

impl RabbitmqPublisher {
    pub(super) fn new(
        receipts: Receipts,
        session: Arc<Session>,
        lanes: Vec<Lane>,
        connections: Vec<Arc<Connection>>,
        batch_len: usize,
    ) -> Self {
        // One unconfirmed message per key: windows on different channels have no order among
        // themselves.
        let profile = Capabilities { max_in_flight_per_key: MaxInFlightPerKey::One, batch_len };
        let mut tasks = JoinSet::new();
        tasks.spawn(run_lanes(Arc::clone(&session), connections.clone(), lanes));
        Self { profile, receipts, session, lanes: tasks, connections }
    }
}

impl RabbitmqPublisher {
    fn pending(&self, ticket: message::Ticket) -> Pending {
        Pending::new(ticket, self.receipts.clone())
    }
}

/// Runs the lanes of a session, and opens more of them while topics wait: a lane whose queue
/// confirms nothing is of no use to others.
async fn run_lanes(session: Arc<Session>, connections: Vec<Arc<Connection>>, opened: Vec<Lane>) {
    let mut lanes = JoinSet::new();
    let lanes_max = connections.iter().map(|connection| lanes_max(connection)).sum();
    for lane in opened {
        lanes.spawn(lane.run());
    }
    let mut next = connections.iter().cycle();
    while lanes.len() < lanes_max {
        tokio::select! {
            wanted = session.backlog.wants_lane(lanes.len()) => if !wanted { break },
            // A lane ends only when nothing is left for it.
            Some(_) = lanes.join_next() => continue,
        }
        let Some(connection) = next.next() else { break };
        match Lane::open(Arc::clone(&session), Arc::clone(connection)).await {
            Ok(lane) => _ = lanes.spawn(lane.run()),
            Err(error) => {
                session.fail(connection, Break::Client(error));
                break;
            }
        }
    }
    while lanes.join_next().await.is_some() {}
}

/// Returns the maximum number of lanes on a connection. One channel is left for other requests.
fn lanes_max(connection: &Connection) -> usize {
    let channels = connection.channels_max().map_or(LANES_MAX, |channels| channels.saturating_sub(1));
    channels.clamp(1, LANES_MAX)
}

#[async_trait]
impl Publisher for RabbitmqPublisher {
    fn profile(&self) -> Capabilities {
        self.profile
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        let item = |Submission { ticket, message }| Item { message, pending: self.pending(ticket) };
        self.session.backlog.push(batch.into_iter().map(item));
    }

    async fn ended(&mut self) {
        if self.connections.is_empty() {
            return std::future::pending().await;
        }
        // Lanes notice the end of their connection at their next message.
        let ends = self.connections.iter().map(|connection| Box::pin(connection.passed()));
        select_all(ends).await;
        // Messages in flight are answered with the client's own error first.
        tokio::time::sleep(GOODBYE).await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        let Self { session, mut lanes, connections, .. } = *self;
        // The lanes end when the backlog is closed and empty.
        session.backlog.close();
        let deadline = Instant::now() + grace;
        let drained = async { while lanes.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, drained).await.is_err() {
            tracing::warn!(?grace, "rabbitmq did not confirm everything within the grace period");
            // Dropping the connections also closes them, without waiting for an answer.
            return lanes.shutdown().await;
        }
        for connection in connections {
            connection.say_goodbye(deadline).await;
        }
    }
}
