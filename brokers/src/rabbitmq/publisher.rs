//! A publishing session: submissions go into one queue, a few lanes take windows out of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::Connection;
use lapin::types::ShortString;
use message::{KeyWindow, Profile, Publisher, Receipts, Submission};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::lane::Lane;
use super::window::Item;
use crate::pending::Pending;

/// How long the goodbye to the broker may take where the caller names no time.
pub(super) const GOODBYE: Duration = Duration::from_secs(1);

/// The reply code of a normal end (AMQP 0-9-1 specification, section 1.2).
const REPLY_SUCCESS: u16 = 200;

/// A session with RabbitMQ. Dropping it ends its tasks; their messages are answered as unknown.
pub(super) struct RabbitmqPublisher {
    profile: Profile,
    receipts: Receipts,
    queue: mpsc::UnboundedSender<Item>,
    lanes: JoinSet<()>,
    connections: Vec<Arc<Connection>>,
}

impl RabbitmqPublisher {
    pub(super) fn new(
        receipts: Receipts,
        queue: mpsc::UnboundedSender<Item>,
        lanes: Vec<Lane>,
        connections: Vec<Arc<Connection>>,
        window_messages_max: usize,
    ) -> Self {
        // One unconfirmed message per key: windows on different channels are not ordered among each other.
        let profile =
            Profile { key_window: KeyWindow::One, batch_len: window_messages_max * lanes.len().max(1) };
        let mut tasks = JoinSet::new();
        for lane in lanes {
            tasks.spawn(lane.run());
        }
        Self { profile, receipts, queue, lanes: tasks, connections }
    }
}

#[async_trait]
impl Publisher for RabbitmqPublisher {
    fn profile(&self) -> Profile {
        self.profile
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        for Submission { ticket, message } in batch {
            let pending = Pending::new(ticket, self.receipts.clone());
            // Fails only when no lane is left; the item is then dropped, which answers it as unknown.
            self.queue.send(Item { message, pending }).ok();
        }
    }

    async fn close(self: Box<Self>, grace: Duration) {
        let Self { queue, mut lanes, connections, .. } = *self;
        // The lanes end when the queue is closed and empty.
        drop(queue);
        let deadline = Instant::now() + grace;
        let drained = async { while lanes.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, drained).await.is_err() {
            tracing::warn!(?grace, "rabbitmq did not confirm everything within the grace period");
            // Dropping the connections closes them, too, without waiting for an answer.
            return lanes.shutdown().await;
        }
        for connection in connections {
            say_goodbye(&connection, deadline).await;
        }
    }
}

/// Closes a connection in order; a failure is only noted, the broker finds out by itself.
pub(super) async fn say_goodbye(connection: &Connection, deadline: Instant) {
    let closing = connection.close(REPLY_SUCCESS, ShortString::default());
    match tokio::time::timeout_at(deadline, closing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "rabbitmq was gone before the goodbye"),
        Err(_) => tracing::debug!("rabbitmq did not answer the goodbye"),
    }
}
