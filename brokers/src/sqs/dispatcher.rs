//! The task of a session: sorts submissions by queue, and keeps a bounded number of requests in
//! flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::backlog::{BATCH_ENTRIES_MAX, Backlog, Item};
use super::send::Sender;

/// How long a request counts among those in flight. One that waits longer for its answer has a
/// silent queue, which must not slow down others. The bound then applies only to its own queue.
const COUNTED: Duration = Duration::from_secs(1);

/// Maximum submissions that are sorted at once.
const SORT_MAX: usize = 1_024;

/// A submission and the queue it goes to.
pub(super) type Addressed = (String, Item);

/// Bounds of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) concurrency: usize,
    pub(super) linger: Duration,
    pub(super) batch_bytes_max: usize,
}

/// The task's state.
pub(super) struct Dispatcher {
    submitted: mpsc::UnboundedReceiver<Addressed>,
    sender: Arc<Sender>,
    pace: Pace,
    queues: QueueBacklogs,
    requests: JoinSet<()>,
    /// The queue and groups that each request occupies.
    occupied: BTreeMap<Id, Occupied>,
}

/// The queue and groups that a request occupies, and since when.
#[derive(Debug)]
struct Occupied {
    queue: String,
    groups: Vec<String>,
    since: Instant,
}

/// A queue's backlog, and since when it has been waiting for a full batch.
#[derive(Debug, Default)]
struct Lane {
    backlog: Backlog,
    since: Option<Instant>,
}

/// The queues with messages, waiting or in flight. A session lasts for weeks, and meets any number
/// of queues.
#[derive(Debug, Default)]
struct QueueBacklogs(BTreeMap<String, Lane>);

impl QueueBacklogs {
    fn push(&mut self, queue: String, item: Item) {
        let lane = self.0.entry(queue).or_default();
        lane.since.get_or_insert_with(Instant::now);
        lane.backlog.push(item);
    }

    fn any_waits(&self) -> bool {
        self.0.values().any(|lane| lane.backlog.len() > 0)
    }

    /// Records that a request is answered, and forgets its queue if that has no more messages.
    fn finish(&mut self, Occupied { queue, groups, .. }: &Occupied) {
        let Some(lane) = self.0.get_mut(queue) else { return };
        lane.backlog.finish(groups);
        if lane.backlog.len() == 0 && lane.backlog.in_flight() == 0 {
            self.0.remove(queue);
        }
    }
}

impl Dispatcher {
    pub(super) fn new(
        submitted: mpsc::UnboundedReceiver<Addressed>,
        sender: Arc<Sender>,
        pace: Pace,
    ) -> Self {
        Self {
            submitted,
            sender,
            pace,
            queues: QueueBacklogs::default(),
            requests: JoinSet::new(),
            occupied: BTreeMap::new(),
        }
    }

    /// Works until nothing more can be submitted and everything is answered. Dropping the future
    /// cancels all requests; their messages are answered as unknown.
    pub(super) async fn run(mut self) {
        let mut open = true;
        let mut arrived = Vec::with_capacity(SORT_MAX);
        while open || !self.requests.is_empty() || self.queues.any_waits() {
            let due = self.dispatch(open);
            let linger = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = self.submitted.recv_many(&mut arrived, SORT_MAX), if open => open = count > 0,
                Some(finished) = self.requests.join_next_with_id() => self.finish(finished),
                () = linger => {}
            }
            for (queue, item) in arrived.drain(..) {
                self.queues.push(queue, item);
            }
        }
    }

    /// Starts requests as far as the bound allows, each queue in turn. Returns when the next batch
    /// that is not full will have waited long enough.
    fn dispatch(&mut self, open: bool) -> Option<Instant> {
        let now = Instant::now();
        let (mut counted, uncounted_at) = self.counted(now);
        let mut due = None;
        let mut progress = true;
        while std::mem::take(&mut progress) {
            due = None;
            for (queue, lane) in &mut self.queues.0 {
                if counted >= self.pace.concurrency {
                    return uncounted_at.or(Some(now + COUNTED));
                }
                if lane.backlog.len() == 0 || lane.backlog.in_flight() >= self.pace.concurrency {
                    continue;
                }
                // A batch that is not full waits briefly, but only while others of its queue are in
                // flight.
                let patient = open && lane.backlog.len() < BATCH_ENTRIES_MAX && lane.backlog.in_flight() > 0;
                let until = lane.since.unwrap_or(now) + self.pace.linger;
                if patient && now < until {
                    due = Some(due.map_or(until, |due: Instant| due.min(until)));
                    continue;
                }
                let batch = lane.backlog.take(self.pace.batch_bytes_max);
                if batch.is_empty() {
                    continue;
                }
                lane.since = (lane.backlog.len() > 0).then_some(now);
                let groups = batch.iter().filter_map(|item| item.group.clone()).collect();
                let task = self.requests.spawn(self.sender.clone().send(queue.clone(), batch));
                self.occupied.insert(task.id(), Occupied { queue: queue.clone(), groups, since: now });
                counted += 1;
                progress = true;
            }
        }
        due
    }

    /// Returns how many requests count, and when the next one of them no longer does.
    fn counted(&self, now: Instant) -> (usize, Option<Instant>) {
        let counted =
            self.occupied.values().map(|occupied| occupied.since + COUNTED).filter(|until| *until > now);
        counted.fold((0, None), |(count, next), until| {
            (count + 1, Some(next.map_or(until, |next| until.min(next))))
        })
    }

    fn finish(&mut self, finished: Result<(Id, ()), JoinError>) {
        let id = match finished {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "a request to sqs failed because of a bug; its messages are answered as unknown");
                error.id()
            }
        };
        if let Some(occupied) = self.occupied.remove(&id) {
            self.queues.finish(&occupied);
        }
    }
}

#[cfg(test)]
mod tests {
    use message::{Receipts, Ticket, Topic};

    use super::*;
    use crate::pending::Pending;
    use crate::sqs::wire::Record;

    fn item() -> Item {
        Item {
            topic: Topic::new("orders").unwrap(),
            record: Record { body: String::from("x"), attributes: Vec::new() },
            group: Some(String::from("a")),
            deduplication: Some(String::from("id")),
            pending: Pending::new(Ticket(0), Receipts::channel().0),
        }
    }

    /// Sends a batch of a queue. Returns the request.
    fn send(queues: &mut QueueBacklogs, queue: &str) -> Occupied {
        let batch = queues.0.get_mut(queue).unwrap().backlog.take(1_000);
        let groups = batch.iter().filter_map(|item| item.group.clone()).collect();
        Occupied { queue: queue.to_owned(), groups, since: Instant::now() }
    }

    #[tokio::test]
    async fn a_queue_is_forgotten_with_its_last_message() {
        let mut queues = QueueBacklogs::default();
        for number in 0..1_000 {
            let queue = format!("orders-{number}.fifo");
            queues.push(queue.clone(), item());
            let request = send(&mut queues, &queue);
            assert_eq!(queues.0.len(), 1, "it is in flight");
            queues.finish(&request);
            assert!(queues.0.is_empty());
        }
        // The second message waits for the first one of its group.
        queues.push(String::from("bills.fifo"), item());
        let first = send(&mut queues, "bills.fifo");
        queues.push(String::from("bills.fifo"), item());
        queues.finish(&first);
        assert!(queues.any_waits());
        let second = send(&mut queues, "bills.fifo");
        assert_eq!(second.groups, ["a"], "its group is free");
        queues.finish(&second);
        assert!(queues.0.is_empty());
    }
}
