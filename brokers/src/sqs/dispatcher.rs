//! The task of a session: sorts submissions by queue, and keeps a bounded number of requests in
//! flight, in total and for each queue (`limits.rs`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::backlog::{BATCH_ENTRIES_MAX, Backlog, Item};
use super::limits::Limits;
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
struct QueueBacklogs {
    lanes: BTreeMap<String, Lane>,
    /// The queue of the last batch. The one behind it, in the order of names, has the next turn.
    served: String,
}

/// The answer of a queue whose turn it is.
enum Turn {
    Send(Vec<Item>),
    /// Its batch is not full, and waits until then.
    Linger(Instant),
    Pass,
}

impl Lane {
    /// Answers for a queue that may have at most `limit` requests in flight.
    fn turn(&mut self, pace: Pace, limit: usize, open: bool, now: Instant) -> Turn {
        let (waiting, in_flight) = (self.backlog.len(), self.backlog.in_flight());
        if waiting == 0 || in_flight >= limit {
            return Turn::Pass;
        }
        // A batch that is not full waits briefly, but only while others of its queue are in flight.
        let until = self.since.unwrap_or(now) + pace.linger;
        if open && waiting < BATCH_ENTRIES_MAX && in_flight > 0 && now < until {
            return Turn::Linger(until);
        }
        let batch = self.backlog.take(pace.batch_bytes_max);
        if batch.is_empty() {
            return Turn::Pass;
        }
        self.since = (self.backlog.len() > 0).then_some(now);
        Turn::Send(batch)
    }
}

impl QueueBacklogs {
    fn push(&mut self, queue: String, item: Item) {
        let lane = self.lanes.entry(queue).or_default();
        lane.since.get_or_insert_with(Instant::now);
        lane.backlog.push(item);
    }

    fn any_waits(&self) -> bool {
        self.lanes.values().any(|lane| lane.backlog.len() > 0)
    }

    /// Takes a batch of the next queue that has one, each queue in turn: a backlog of one takes no
    /// place for which another one waits. Without one, returns when the next batch that is not full
    /// will have waited long enough.
    fn take(
        &mut self,
        pace: Pace,
        limits: &Limits,
        open: bool,
        now: Instant,
    ) -> Result<(String, Vec<Item>), Option<Instant>> {
        let limits = limits.lock();
        let served = std::mem::take(&mut self.served);
        let behind = (Bound::Excluded(served.as_str()), Bound::Unbounded);
        let others = (Bound::Unbounded, Bound::Included(served.as_str()));
        let mut due: Option<Instant> = None;
        for part in [behind, others] {
            for (queue, lane) in self.lanes.range_mut::<str, _>(part) {
                match lane.turn(pace, limits.of(queue), open, now) {
                    Turn::Send(batch) => {
                        self.served.clone_from(queue);
                        return Ok((queue.clone(), batch));
                    }
                    Turn::Linger(until) => due = Some(due.map_or(until, |due| due.min(until))),
                    Turn::Pass => {}
                }
            }
        }
        self.served = served;
        Err(due)
    }

    /// Records that a request is answered, and forgets its queue if that has no more messages.
    fn finish(&mut self, Occupied { queue, groups, .. }: &Occupied) {
        let Some(lane) = self.lanes.get_mut(queue) else { return };
        lane.backlog.finish(groups);
        if lane.backlog.len() == 0 && lane.backlog.in_flight() == 0 {
            self.lanes.remove(queue);
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

    /// Starts requests as far as the bound allows. Returns when to look again, unless something
    /// happens before: when the next batch that is not full will have waited long enough.
    fn dispatch(&mut self, open: bool) -> Option<Instant> {
        let now = Instant::now();
        let (mut counted, uncounted_at) = self.counted(now);
        loop {
            if counted >= self.pace.concurrency {
                return uncounted_at.or(Some(now + COUNTED));
            }
            let (queue, batch) = match self.queues.take(self.pace, &self.sender.limits, open, now) {
                Ok(taken) => taken,
                Err(due) => return due,
            };
            let groups = batch.iter().filter_map(|item| item.group.clone()).collect();
            let task = self.requests.spawn(self.sender.clone().send(queue.clone(), batch));
            self.occupied.insert(task.id(), Occupied { queue, groups, since: now });
            counted += 1;
        }
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
    use std::collections::VecDeque;

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

    const PACE: Pace = Pace { concurrency: 2, linger: Duration::ZERO, batch_bytes_max: 1_000 };

    /// Takes the next batch. Returns the request.
    fn send(queues: &mut QueueBacklogs) -> Occupied {
        let limits = Limits::new(PACE.concurrency);
        let (queue, batch) = queues.take(PACE, &limits, true, Instant::now()).expect("a batch");
        let groups = batch.iter().filter_map(|item| item.group.clone()).collect();
        Occupied { queue, groups, since: Instant::now() }
    }

    /// Goal: a queue with a few messages gets its turn beside the backlog of another one, whatever
    /// their names are. Oracle: the queues of the requests, each of which begins when another one
    /// has ended.
    #[tokio::test]
    async fn queues_take_turns() {
        for (busy, other) in [("a", "b"), ("b", "a")] {
            let mut queues = QueueBacklogs::default();
            let push = |queues: &mut QueueBacklogs, queue: &str| {
                queues.push(queue.to_owned(), Item { group: None, ..item() });
            };
            (0..1_000).for_each(|_| push(&mut queues, busy));
            let mut requests = VecDeque::from([send(&mut queues), send(&mut queues)]);
            (0..40).for_each(|_| push(&mut queues, other));
            let mut served = Vec::new();
            for _ in 0..8 {
                queues.finish(&requests.pop_front().unwrap());
                requests.push_back(send(&mut queues));
                served.push(requests.back().unwrap().queue.clone());
            }
            assert_eq!(served.iter().filter(|queue| *queue == other).count(), 4, "{served:?}");
        }
    }

    /// Goal: a queue that SQS throttles gets fewer places, and the others keep theirs. Oracle: the
    /// queues of the requests, none of which ends.
    #[tokio::test]
    async fn a_throttled_queue_has_fewer_requests_in_flight() {
        const WIDE: Pace = Pace { concurrency: 16, ..PACE };
        let limits = Limits::new(WIDE.concurrency);
        let mut queues = QueueBacklogs::default();
        for queue in ["bills", "orders"] {
            (0..1_000).for_each(|_| queues.push(queue.to_owned(), Item { group: None, ..item() }));
        }
        let now = Instant::now();
        limits.throttled("orders", now, now);
        let mut served = Vec::new();
        while let Ok(taken) = queues.take(WIDE, &limits, true, now) {
            served.push(taken.0);
        }
        let of = |queue: &str| served.iter().filter(|served| *served == queue).count();
        assert_eq!((of("bills"), of("orders")), (16, 8));
        limits.stored("orders", now, now);
        let queue = queues.take(WIDE, &limits, true, now).map(|taken| taken.0);
        assert_eq!(queue, Ok(String::from("orders")), "there is room for one more");
    }

    #[tokio::test]
    async fn a_queue_is_forgotten_with_its_last_message() {
        let mut queues = QueueBacklogs::default();
        for number in 0..1_000 {
            let queue = format!("orders-{number}.fifo");
            queues.push(queue.clone(), item());
            let request = send(&mut queues);
            assert_eq!(queues.lanes.len(), 1, "it is in flight");
            queues.finish(&request);
            assert!(queues.lanes.is_empty());
        }
        // The second message waits for the first one of its group.
        queues.push(String::from("bills.fifo"), item());
        let first = send(&mut queues);
        queues.push(String::from("bills.fifo"), item());
        queues.finish(&first);
        assert!(queues.any_waits());
        let second = send(&mut queues);
        assert_eq!(second.groups, ["a"], "its group is free");
        queues.finish(&second);
        assert!(queues.lanes.is_empty());
    }
}
