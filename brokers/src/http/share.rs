//! The share of one receiver: in the requests in flight, and in what may wait.
//!
//! A configured endpoint has a share of its own. The URLs that messages name share that of their
//! host, because a message can name any number of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use http::Uri;
use message::FaultScope;
use tokio::time::Instant;

use super::fault::{Failure, Kind};
use super::send::Job;
use super::streak::Streak;

/// Maximum bytes of messages that wait in a share, so that few of them leave most of the relay's
/// window (12 MiB by default) to others. It does not apply to the first ones, see [`Bounds`].
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Bounds of a share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum requests in flight. As many messages may wait, of any size.
    pub(super) concurrency: usize,
    /// Maximum messages that wait; `None` where there is only one endpoint, which delays no other.
    pub(super) waiting_max: Option<usize>,
}

/// The endpoints that share the requests to one receiver.
#[derive(Debug)]
pub(super) struct Share {
    bounds: Bounds,
    lanes: HashMap<Uri, Lane>,
    /// The endpoints that may send, each once.
    turns: VecDeque<Uri>,
    in_flight: usize,
    waiting: usize,
    waiting_bytes: usize,
    /// Whether it is among the turns of the dispatcher.
    pub(super) has_turn: bool,
}

/// A message that is sent next, and what is known of failures of its endpoint.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) job: Job,
    pub(super) streak: Arc<Streak>,
}

/// The messages of one endpoint.
#[derive(Debug)]
struct Lane {
    waiting: VecDeque<Job>,
    in_flight: usize,
    /// Whether its last request failed. Then one request at a time tries whether it is back.
    is_failing: bool,
    /// The messages on which it failed in succession.
    streak: Arc<Streak>,
    /// When it last answered about a message.
    answered_at: Option<Instant>,
    /// Whether it is among the turns.
    has_turn: bool,
}

impl Lane {
    fn new(concurrency: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            in_flight: 0,
            is_failing: false,
            streak: Arc::new(Streak::new(concurrency)),
            answered_at: None,
            has_turn: false,
        }
    }

    /// Returns whether nothing is known of it that matters for its next message.
    fn is_forgettable(&self) -> bool {
        self.is_idle() && !self.is_failing && self.streak.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty()
    }

    fn may_send(&self, concurrency: usize) -> bool {
        let most = if self.is_failing { 1 } else { concurrency };
        !self.waiting.is_empty() && self.in_flight < most
    }
}

impl Share {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            in_flight: 0,
            waiting: 0,
            waiting_bytes: 0,
            has_turn: false,
        }
    }

    /// Takes a message, or answers it at once if it would only wait.
    pub(super) fn push(&mut self, job: Job) {
        if let Some(failure) = self.refuses(&job) {
            return job.fail(&failure);
        }
        let uri = job.endpoint.target.uri.clone();
        self.waiting += 1;
        self.waiting_bytes += job.message.wire_bytes();
        let new = || Lane::new(self.bounds.concurrency);
        self.lanes.entry(uri.clone()).or_insert_with(new).waiting.push_back(job);
        self.take_turn(uri);
    }

    /// Returns why a message may not wait here. Nothing of it was sent.
    fn refuses(&self, job: &Job) -> Option<Failure> {
        let lane = self.lanes.get(&job.endpoint.target.uri);
        // Others of its topic have other endpoints, so the topic is not stopped: whatever comes
        // would wait here, without an answer, behind a request that may hang.
        let is_tried = lane.is_some_and(|lane| lane.is_failing && !lane.is_idle());
        if is_tried && job.endpoint.scope == FaultScope::Message {
            return Some(Failure::tried());
        }
        let max = self.bounds.waiting_max?;
        let bytes = self.waiting_bytes + job.message.wire_bytes();
        let has_no_room =
            self.waiting >= max || (self.waiting >= self.bounds.concurrency && bytes > WAITING_BYTES_MAX);
        has_no_room.then(|| Failure::behind(self.waiting))
    }

    /// Puts an endpoint among the turns, if it may send.
    fn take_turn(&mut self, uri: Uri) {
        let Some(lane) = self.lanes.get_mut(&uri) else { return };
        if lane.may_send(self.bounds.concurrency) && !lane.has_turn {
            lane.has_turn = true;
            self.turns.push_back(uri);
        }
    }

    /// Returns whether a request may be begun, as far as is known without looking at the turns.
    pub(super) fn may_send(&self) -> bool {
        self.in_flight < self.bounds.concurrency && !self.turns.is_empty()
    }

    /// Returns the next message to send; it is in flight from now on.
    pub(super) fn next(&mut self) -> Option<Next> {
        while self.in_flight < self.bounds.concurrency {
            let uri = self.turns.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&uri) else { continue };
            lane.has_turn = false;
            // The endpoint may have failed since it got its turn.
            if !lane.may_send(self.bounds.concurrency) {
                continue;
            }
            let Some(job) = lane.waiting.pop_front() else { continue };
            lane.in_flight += 1;
            self.in_flight += 1;
            let streak = Arc::clone(&lane.streak);
            self.leaves(&job);
            self.take_turn(uri);
            return Some(Next { job, streak });
        }
        None
    }

    fn leaves(&mut self, job: &Job) {
        self.waiting -= 1;
        self.waiting_bytes -= job.message.wire_bytes();
    }

    /// Takes the end of a request that was begun at `since`, with the endpoint's failure. Returns
    /// whether the endpoint is known from now on only because it failed.
    pub(super) fn finish(&mut self, uri: &Uri, since: Instant, failure: Option<&Failure>) -> bool {
        self.in_flight -= 1;
        let Some(lane) = self.lanes.get_mut(uri) else { return false };
        lane.in_flight -= 1;
        match failure {
            // It has answered others meanwhile: the failure shows nothing about them.
            Some(failure) if failure.kind == Kind::Lost && lane.answered_at.is_some_and(|at| at > since) => {}
            Some(failure) => {
                lane.is_failing = true;
                // Each of them would wait for the same failure, and they have not been sent.
                for job in std::mem::take(&mut lane.waiting) {
                    self.leaves(&job);
                    job.fail(failure);
                }
            }
            None => {
                // Of two requests that failed, the last one may be the first to end here.
                lane.is_failing = lane.streak.is_full();
                lane.answered_at = Some(Instant::now());
            }
        }
        let is_idle = self.lanes.get(uri).is_some_and(Lane::is_idle);
        if self.lanes.get(uri).is_some_and(Lane::is_forgettable) {
            self.lanes.remove(uri);
            return false;
        }
        self.take_turn(uri.clone());
        is_idle
    }

    /// Returns how many endpoints are known only because they failed.
    pub(super) fn idle_len(&self) -> usize {
        self.lanes.values().filter(|lane| lane.is_idle()).count()
    }

    /// Forgets the endpoints that are known only because they failed.
    pub(super) fn forget_idle(&mut self) {
        self.lanes.retain(|_, lane| !lane.is_idle());
    }

    /// Returns whether nothing is known of its endpoints.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}
