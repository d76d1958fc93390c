//! The task of a session: sorts submissions by endpoint, and keeps a bounded number of requests in
//! flight.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::fault::{Failure, Kind};
use super::send::{Job, Sender};

/// How long a request counts among those in flight. One that waits longer for its answer has a slow
/// endpoint, which must not slow down others. The bound then applies only to its own endpoint.
const COUNTED: Duration = Duration::from_secs(1);

/// Maximum submissions that are sorted at once.
const SORT_MAX: usize = 1_024;

/// Number of endpoints without messages at which those that failed before are forgotten.
const IDLE_LANES_MAX: usize = 10_000;

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
    in_flight: HashMap<Id, Request>,
    counted: Counted,
    /// How many endpoints are known only because they failed.
    idle_lanes: usize,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    uri: Uri,
    since: Instant,
    /// Whether it counts among all requests.
    is_counted: bool,
}

/// The requests that count among all requests, in the order in which they stop doing so. Each step
/// takes constant time on average, however many requests hang.
#[derive(Debug, Default)]
struct Counted {
    len: usize,
    /// Also those that were answered meanwhile.
    until: VecDeque<(Instant, Id)>,
}

/// The messages of one endpoint.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Job>,
    in_flight: usize,
    /// Whether its last request failed. Then one request at a time tries whether it is back.
    is_failing: bool,
    /// When it last answered about a message.
    answered_at: Option<Instant>,
    /// Whether it is among the turns.
    has_turn: bool,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

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
            in_flight: HashMap::new(),
            counted: Counted::default(),
            idle_lanes: 0,
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
        let uri = job.endpoint.target.uri.clone();
        match self.lanes.get_mut(&uri) {
            Some(lane) => {
                self.idle_lanes -= usize::from(lane.is_idle());
                lane.waiting.push_back(job);
            }
            None => self.lanes.entry(uri.clone()).or_default().waiting.push_back(job),
        }
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
        self.stop_counting(now);
        while self.counted.len < self.pace.requests_max
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
            self.counted.len += 1;
            self.counted.until.push_back((now + COUNTED, task.id()));
            self.in_flight.insert(task.id(), Request { uri: uri.clone(), since: now, is_counted: true });
            self.take_turn(uri);
        }
        if self.turns.is_empty() { None } else { self.counted.until.front().map(|(until, _)| *until) }
    }

    /// Stops counting the requests that are in flight for long enough. Afterwards the first one of
    /// the queue, if any, still counts.
    fn stop_counting(&mut self, now: Instant) {
        while let Some((until, id)) = self.counted.until.front() {
            let request = self.in_flight.get_mut(id);
            match request {
                Some(_) if now < *until => return,
                Some(request) => {
                    request.is_counted = false;
                    self.counted.len -= 1;
                }
                None => {}
            }
            self.counted.until.pop_front();
        }
    }

    fn finish(&mut self, finished: Result<(Id, Option<Failure>), JoinError>) {
        let (id, failure) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(%error, "an HTTP request failed because of a bug; its message is answered as unknown");
                (error.id(), None)
            }
        };
        let Some(Request { uri, since, is_counted }) = self.in_flight.remove(&id) else { return };
        self.counted.len -= usize::from(is_counted);
        let Some(lane) = self.lanes.get_mut(&uri) else { return };
        lane.in_flight -= 1;
        match failure {
            // It has answered others meanwhile: the failure shows nothing about them.
            Some(failure) if failure.kind == Kind::Lost && lane.answered_at.is_some_and(|at| at > since) => {}
            Some(failure) => {
                lane.is_failing = true;
                // Each of them would wait for the same failure, and they have not been sent.
                lane.waiting.drain(..).for_each(|job| job.fail(&failure));
            }
            None => {
                lane.is_failing = false;
                lane.answered_at = Some(Instant::now());
            }
        }
        let is_failing = lane.is_failing;
        if !lane.is_idle() {
            self.take_turn(uri);
        } else if is_failing {
            self.keep_idle();
        } else {
            self.lanes.remove(&uri);
        }
    }

    /// Keeps an endpoint without messages, because it failed. Forgets all such endpoints if they
    /// are many.
    fn keep_idle(&mut self) {
        self.idle_lanes += 1;
        if self.idle_lanes >= IDLE_LANES_MAX {
            self.lanes.retain(|_, lane| !lane.is_idle());
            self.idle_lanes = 0;
        }
    }
}
