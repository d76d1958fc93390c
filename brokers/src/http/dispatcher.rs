//! The task of a session: sorts submissions by endpoint, and keeps a bounded number of requests in
//! flight.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::fault::Failure;
use super::send::{Job, Sender};

/// How long a request counts among those in flight. One that waits longer for its answer has a slow
/// endpoint, which must not slow down others. The bound then applies only to its own endpoint.
const COUNTED: Duration = Duration::from_secs(1);

/// Maximum submissions that are sorted at once.
const SORT_MAX: usize = 1_024;

/// Number of endpoints at which those that failed before are forgotten.
const LANES_MAX: usize = 10_000;

/// Bounds of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Maximum requests in flight to one endpoint.
    pub(super) concurrency: usize,
    /// Maximum requests in flight, without those that are slow.
    pub(super) requests_max: usize,
}

/// The task's state.
pub(super) struct Dispatcher {
    submitted: mpsc::UnboundedReceiver<Job>,
    sender: Arc<Sender>,
    pace: Pace,
    lanes: HashMap<Uri, Lane>,
    /// The endpoints that may send, each once.
    turns: VecDeque<Uri>,
    requests: JoinSet<Option<Failure>>,
    /// The endpoint of each request, and since when it is in flight.
    in_flight: BTreeMap<Id, (Uri, Instant)>,
}

/// The messages of one endpoint.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Job>,
    in_flight: usize,
    /// Whether its last request failed. Then one request at a time tries whether it is back.
    is_failing: bool,
    /// Whether it is among the turns.
    has_turn: bool,
}

impl Lane {
    fn may_send(&self, pace: Pace) -> bool {
        let most = if self.is_failing { 1 } else { pace.concurrency };
        !self.waiting.is_empty() && self.in_flight < most
    }
}

impl Dispatcher {
    pub(super) fn new(submitted: mpsc::UnboundedReceiver<Job>, sender: Arc<Sender>, pace: Pace) -> Self {
        Self {
            submitted,
            sender,
            pace,
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            requests: JoinSet::new(),
            in_flight: BTreeMap::new(),
        }
    }

    /// Works until nothing more can be submitted and everything is answered. Dropping the future
    /// cancels all requests; their messages are answered as unknown.
    pub(super) async fn run(mut self) {
        let mut open = true;
        let mut arrived = Vec::with_capacity(SORT_MAX);
        while open || !self.requests.is_empty() || !self.turns.is_empty() {
            let due = self.dispatch();
            let room = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = self.submitted.recv_many(&mut arrived, SORT_MAX), if open => open = count > 0,
                Some(finished) = self.requests.join_next_with_id() => self.finish(finished),
                () = room => {}
            }
            arrived.drain(..).for_each(|job| self.push(job));
        }
    }

    fn push(&mut self, job: Job) {
        if let Some(failure) = self.sender.stopped(&job.endpoint) {
            return job.fail(&failure);
        }
        if self.lanes.len() >= LANES_MAX {
            self.lanes.retain(|_, lane| lane.in_flight > 0 || !lane.waiting.is_empty());
        }
        let uri = job.endpoint.target.uri.clone();
        self.lanes.entry(uri.clone()).or_default().waiting.push_back(job);
        self.take_turn(uri);
    }

    /// Puts an endpoint among the turns, if it may send.
    fn take_turn(&mut self, uri: Uri) {
        let Some(lane) = self.lanes.get_mut(&uri) else { return };
        if lane.may_send(self.pace) && !lane.has_turn {
            lane.has_turn = true;
            self.turns.push_back(uri);
        }
    }

    /// Starts requests as far as the bounds allow, of each endpoint in turn. Returns when there
    /// will be room for more, if there is none now.
    fn dispatch(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let counts = |since: &Instant| now < *since + COUNTED;
        let mut counted = self.in_flight.values().filter(|(_, since)| counts(since)).count();
        while counted < self.pace.requests_max
            && let Some(uri) = self.turns.pop_front()
        {
            let Some(lane) = self.lanes.get_mut(&uri) else { continue };
            lane.has_turn = false;
            // The endpoint may have failed since it got its turn.
            if !lane.may_send(self.pace) {
                continue;
            }
            let Some(job) = lane.waiting.pop_front() else { continue };
            lane.in_flight += 1;
            let task = self.requests.spawn(Arc::clone(&self.sender).send(job));
            self.in_flight.insert(task.id(), (uri.clone(), now));
            counted += 1;
            self.take_turn(uri);
        }
        let next = || self.in_flight.values().map(|(_, since)| *since + COUNTED).filter(|at| now < *at).min();
        if self.turns.is_empty() { None } else { next() }
    }

    fn finish(&mut self, finished: Result<(Id, Option<Failure>), JoinError>) {
        let (id, failure) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(%error, "an HTTP request failed because of a bug; its message is answered as unknown");
                (error.id(), None)
            }
        };
        let Some((uri, _)) = self.in_flight.remove(&id) else { return };
        let Some(lane) = self.lanes.get_mut(&uri) else { return };
        lane.in_flight -= 1;
        lane.is_failing = failure.is_some();
        if let Some(failure) = failure {
            // Each of them would wait for the same failure, and they have not been sent.
            lane.waiting.drain(..).for_each(|job| job.fail(&failure));
        }
        if lane.in_flight == 0 && lane.waiting.is_empty() && !lane.is_failing {
            self.lanes.remove(&uri);
        } else {
            self.take_turn(uri);
        }
    }
}
