//! The share of one receiver: in the requests in flight, and in what may wait.
//!
//! A configured endpoint has a share of its own. The URLs that messages name share that of their
//! host, because a message can name any number of them.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use http::Uri;
use message::FaultScope;
use tokio::time::Instant;

use super::depth::Times;
use super::fault::{Failure, Kind, Shown};
use super::send::Job;
use super::streak::Streak;

/// Maximum bytes of messages that wait in a share. A few full shares leave most of the relay's
/// window (12 MiB by default) to others. The first messages may exceed it, see [`Bounds`].
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Bounds of a share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum requests in flight. As many messages may wait, of any size.
    pub(super) concurrency: usize,
    /// Maximum messages that wait for a fast endpoint; fewer wait for a slower one, see
    /// [`Times::depth`]. `None` if there is only one endpoint, which cannot delay others.
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
    /// Number of messages taken so far, and so the number of the last one.
    taken: u64,
    times: Times,
    /// Whether it is among the turns of the dispatcher.
    pub(super) has_turn: bool,
}

/// The message to send next, and the failures of its endpoint.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) job: Job,
    pub(super) streak: Arc<Streak>,
}

/// A message that waits.
#[derive(Debug)]
struct Waiting {
    /// Its number in the order of arrival.
    number: u64,
    job: Job,
}

/// The messages of one endpoint.
#[derive(Debug)]
struct Lane {
    waiting: VecDeque<Waiting>,
    in_flight: usize,
    /// Whether its last request failed. Then one request at a time tries whether the endpoint is
    /// back.
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

    /// Returns whether nothing is known about it that matters for its next message.
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
            taken: 0,
            times: Times::default(),
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
        self.taken += 1;
        let waiting = Waiting { number: self.taken, job };
        let new = || Lane::new(self.bounds.concurrency);
        self.lanes.entry(uri.clone()).or_insert_with(new).waiting.push_back(waiting);
        self.take_turn(uri);
    }

    /// Returns why a message may not wait here. Nothing of it was sent.
    fn refuses(&self, job: &Job) -> Option<Failure> {
        let lane = self.lanes.get(&job.endpoint.target.uri);
        // Other messages of the topic have other endpoints, so the topic is not stopped. All that
        // arrive would wait here, without an answer, behind a request that may hang.
        let is_tried = lane.is_some_and(|lane| lane.is_failing && !lane.is_idle());
        if is_tried && job.endpoint.scope == FaultScope::Message {
            return Some(Failure::tried());
        }
        let concurrency = self.bounds.concurrency;
        // The request that tries it may hang as well.
        let depth = self.depth(Instant::now())?;
        let depth = if is_tried { concurrency } else { depth };
        let bytes = self.waiting_bytes + job.message.wire_bytes();
        let has_no_room = self.waiting >= depth || (self.waiting >= concurrency && bytes > WAITING_BYTES_MAX);
        has_no_room.then(Failure::behind)
    }

    /// Returns how many messages may wait; `None` if any number.
    fn depth(&self, now: Instant) -> Option<usize> {
        Some(self.times.depth(self.bounds.concurrency, self.bounds.waiting_max?, now))
    }

    /// Answers the newest waiting messages, if far more wait than are sent soon. Returns whether
    /// those that are left may become too many while nothing is answered.
    pub(super) fn shorten(&mut self, now: Instant) -> bool {
        let Some(depth) = self.depth(now) else { return false };
        // Not at each small change of speed: an answered message is stored and read again.
        if self.waiting > depth.saturating_mul(2) {
            self.answer_beyond(depth);
        }
        self.waiting > self.bounds.concurrency
    }

    /// Answers all waiting messages after the first `depth`, the newest first. None of them was
    /// sent.
    fn answer_beyond(&mut self, depth: usize) {
        let numbers = self.lanes.values().flat_map(|lane| &lane.waiting).map(|waiting| waiting.number);
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_unstable();
        let Some(first) = numbers.get(depth) else { return };
        let mut beyond = Vec::with_capacity(numbers.len() - depth);
        for lane in self.lanes.values_mut() {
            let kept = lane.waiting.partition_point(|waiting| waiting.number < *first);
            beyond.extend(lane.waiting.drain(kept..));
        }
        beyond.sort_unstable_by_key(|waiting| Reverse(waiting.number));
        let failure = Failure::behind();
        for Waiting { job, .. } in beyond {
            self.leaves(&job);
            job.fail(&failure);
        }
        self.lanes.retain(|_, lane| !lane.is_forgettable());
        self.turns.retain(|uri| self.lanes.contains_key(uri));
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

    /// Returns the next message to send; it is in flight from `now` on.
    pub(super) fn next(&mut self, now: Instant) -> Option<Next> {
        while self.in_flight < self.bounds.concurrency {
            let uri = self.turns.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&uri) else { continue };
            lane.has_turn = false;
            // The endpoint may have failed since it got its turn.
            if !lane.may_send(self.bounds.concurrency) {
                continue;
            }
            let Some(Waiting { job, .. }) = lane.waiting.pop_front() else { continue };
            lane.in_flight += 1;
            self.in_flight += 1;
            self.times.begins(now);
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

    /// Takes the end of a request that was begun at `since`. Returns whether the endpoint is known
    /// from now on only because it failed.
    pub(super) fn finish(&mut self, uri: &Uri, since: Instant, shown: &Shown) -> bool {
        let now = Instant::now();
        // Although messages wait, other shares have the places that this one does not use.
        let slowdown = if self.waiting > 0 { self.bounds.concurrency / self.in_flight.max(1) } else { 1 };
        if matches!(shown, Shown::Nothing) {
            self.times.drops(since);
        } else {
            self.times.ends(since, now, u32::try_from(slowdown).unwrap_or(u32::MAX));
        }
        self.in_flight -= 1;
        let Some(lane) = self.lanes.get_mut(uri) else { return false };
        lane.in_flight -= 1;
        match shown {
            Shown::Nothing => {}
            // It has answered others meanwhile: the failure shows nothing about them.
            Shown::Failed(Failure { kind: Kind::Lost, .. })
                if lane.answered_at.is_some_and(|at| at > since) => {}
            Shown::Failed(failure) => {
                lane.is_failing = true;
                // Each of them would wait for the same failure, and they have not been sent.
                for Waiting { job, .. } in std::mem::take(&mut lane.waiting) {
                    self.leaves(&job);
                    job.fail(failure);
                }
            }
            Shown::Answered => {
                // Of two requests that failed, the last one may be the first to end here.
                lane.is_failing = lane.streak.is_full();
                lane.answered_at = Some(now);
            }
        }
        self.shorten(now);
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

    /// Returns whether nothing is known about its endpoints.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use message::{EventType, Message, OrderingKey, Receipt, Receipts, Ticket, Topic};
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::http::config::Config;
    use crate::http::depth::WAIT_MAX;
    use crate::http::endpoints::Endpoints;
    use crate::pending::Pending;

    const CONCURRENCY: usize = 16;
    const WAITING_MAX: usize = 512;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A request in flight.
    struct Request {
        next: Next,
        since: Instant,
        /// When it is answered.
        until: Instant,
    }

    /// A share whose endpoint needs the same time for each request.
    struct Bench {
        share: Share,
        endpoints: Endpoints,
        channel: Receipts,
        receipts: UnboundedReceiver<Receipt>,
        requests: VecDeque<Request>,
        each: Duration,
        /// When each message was pushed, by its ticket less one.
        pushed: Vec<Instant>,
        sent: Vec<u64>,
        /// The longest time for which a message waited before it was sent.
        waited: Duration,
        /// The tickets that were answered as saturated.
        refused: Vec<u64>,
    }

    impl Bench {
        fn new(each: Duration) -> Self {
            Self::of(Some(WAITING_MAX), each, &["orders"])
        }

        fn of(waiting_max: Option<usize>, each: Duration, topics: &[&str]) -> Self {
            let config = topics.iter().fold(Config::default(), |config, topic| {
                let url = format!("https://a.example/{topic}");
                config.endpoint(*topic, crate::http::Endpoint::new(url))
            });
            let (channel, receipts) = Receipts::channel();
            Self {
                share: Share::new(Bounds { concurrency: CONCURRENCY, waiting_max }),
                endpoints: Endpoints::new(&config),
                channel,
                receipts,
                requests: VecDeque::new(),
                each,
                pushed: Vec::new(),
                sent: Vec::new(),
                waited: Duration::ZERO,
                refused: Vec::new(),
            }
        }

        fn push(&mut self, topic: &str, messages: usize) {
            for _ in 0..messages {
                self.pushed.push(Instant::now());
                let ticket = self.pushed.len() as u64;
                let message = Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "{}")
                    .with_key(OrderingKey::new(ticket.to_string()).unwrap());
                let endpoint = self.endpoints.of(&message).unwrap();
                let pending = Pending::new(Ticket(ticket), self.channel.clone());
                self.share.push(Job { message: message.into(), endpoint, pending });
            }
            self.look();
        }

        fn send(&mut self) {
            let now = Instant::now();
            while let Some(next) = self.share.next(now) {
                let key = next.job.message.key.as_ref().unwrap().as_str();
                let ticket: u64 = key.parse().unwrap();
                self.waited = self.waited.max(now - self.pushed[ticket as usize - 1]);
                self.sent.push(ticket);
                self.requests.push_back(Request { next, since: now, until: now + self.each });
            }
        }

        /// Answers the requests whose time is over, and sends others in their places.
        fn answer(&mut self) {
            while self.requests.front().is_some_and(|request| request.until <= Instant::now()) {
                self.end(&Shown::Answered);
                self.send();
            }
        }

        /// Ends the oldest request.
        fn end(&mut self, shown: &Shown) {
            let Request { next, since, .. } = self.requests.pop_front().unwrap();
            let uri = next.job.endpoint.target.uri.clone();
            next.job.pending.answer(Ok(()));
            self.share.finish(&uri, since, shown);
            self.look();
        }

        /// Takes in the receipts.
        fn look(&mut self) {
            while let Ok(Receipt { ticket, outcome }) = self.receipts.try_recv() {
                if let Err(error) = outcome {
                    assert!(error.is_saturated() && !error.is_about_this_message(), "{error}");
                    self.refused.push(ticket.0);
                }
            }
        }

        /// Lets time pass in steps, with this many new messages in each.
        async fn run(&mut self, time: Duration, step: Duration, messages: usize) {
            let end = Instant::now() + time;
            while Instant::now() < end {
                self.push("orders", messages);
                self.send();
                tokio::time::advance(step).await;
                self.answer();
            }
        }
    }

    /// Goal: no unsent message waits for a slow endpoint much longer than half a second, and yet
    /// there is always enough to send to it. Oracle: the waits, and the number of requests.
    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_slow_endpoint_is_sent_soon() {
        for each in [40, 100, 300] {
            let mut bench = Bench::new(ms(each));
            bench.run(ms(2_000), ms(10), 20).await;
            assert!(bench.waited < 2 * WAIT_MAX, "{each}: {:?}", bench.waited);
            bench.waited = Duration::ZERO;
            bench.run(ms(18_000), ms(10), 20).await;
            assert!(bench.waited <= WAIT_MAX + 2 * ms(each), "{each}: {:?}", bench.waited);
            let possible = CONCURRENCY * 20_000 / each as usize;
            assert!(bench.sent.len() >= possible * 19 / 20, "{each}: {} of {possible}", bench.sent.len());
            assert!(bench.sent.is_sorted(), "in order");
        }
    }

    /// Goal: a quick endpoint is not slowed down. Oracle: how many messages wait for it, and that
    /// none is refused.
    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_quick_endpoint_keeps_its_bound() {
        let mut bench = Bench::new(ms(5));
        for _ in 0..20 {
            bench.push("orders", WAITING_MAX);
            bench.send();
            bench.run(ms(160), ms(5), 0).await;
            assert_eq!((bench.share.waiting, bench.refused.len()), (0, 0));
        }
        bench.push("orders", WAITING_MAX + 1);
        assert_eq!(bench.refused, [20 * WAITING_MAX as u64 + 513]);
    }

    /// Goal: if a burst came before the endpoint was known to be slow, the newest messages are
    /// answered and the rest are sent in order. Oracle: the receipts, and what is sent.
    #[tokio::test(start_paused = true)]
    async fn the_first_answer_shortens_a_burst_from_its_end() {
        let mut bench = Bench::of(Some(WAITING_MAX), ms(250), &["orders", "bills", "parcels"]);
        for _ in 0..100 {
            bench.push("orders", 2);
            bench.push("bills", 1);
        }
        bench.send();
        bench.push("parcels", 3);
        assert!(bench.refused.is_empty());
        tokio::time::advance(ms(250)).await;
        bench.end(&Shown::Answered);
        // 32 are sent in half a second, and 16 are in flight.
        let sent: HashSet<u64> = bench.sent.iter().copied().collect();
        let kept: Vec<_> = (1..=303).filter(|ticket| !sent.contains(ticket)).take(32).collect();
        let newest: Vec<_> = (kept[31] + 1..=303).rev().filter(|ticket| !sent.contains(ticket)).collect();
        assert_eq!(bench.refused, newest);
        assert_eq!((bench.share.waiting, bench.share.lanes.len()), (32, 2), "one endpoint has nothing left");
        bench.refused.clear();
        bench.run(ms(1_000), ms(250), 0).await;
        assert_eq!((bench.sent.len(), bench.share.waiting, bench.share.waiting_bytes), (48, 0, 0));
        assert!(bench.refused.is_empty() && bench.share.is_empty());
    }

    /// Goal: behind hanging requests only as many messages wait as the endpoint takes at once,
    /// although no answer shows that they hang. Oracle: the receipts.
    #[tokio::test(start_paused = true)]
    async fn little_waits_behind_requests_that_hang() {
        let mut bench = Bench::new(ms(60_000));
        bench.push("orders", 200);
        bench.send();
        tokio::time::advance(ms(100)).await;
        assert!(bench.share.shorten(Instant::now()), "80 may wait, and 184 are more than twice as many");
        bench.look();
        assert_eq!(bench.refused, (97..=200).rev().collect::<Vec<_>>());
        tokio::time::advance(WAIT_MAX).await;
        assert!(!bench.share.shorten(Instant::now()), "there is nothing to look at any more");
        bench.push("orders", 1);
        assert_eq!((bench.share.waiting, bench.refused.last()), (CONCURRENCY, Some(&201)));
        // The answer of one shows nothing about the others.
        bench.end(&Shown::Answered);
        bench.send();
        bench.push("orders", 2);
        assert_eq!((bench.share.waiting, bench.refused.last()), (CONCURRENCY, Some(&203)));
    }

    /// Goal: one request that hangs among quick ones takes only its own place. Oracle: the
    /// receipts.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_leaves_the_others_their_pace() {
        let mut bench = Bench::new(ms(60_000));
        bench.push("orders", 1);
        bench.send();
        bench.each = ms(5);
        let hanging = bench.requests.pop_front().unwrap();
        for _ in 0..20 {
            bench.push("orders", 400);
            bench.send();
            bench.run(ms(140), ms(5), 0).await;
        }
        assert_eq!((bench.share.waiting, bench.sent.len()), (0, 8_001));
        assert!(bench.refused.is_empty());
        drop(hanging);
    }

    /// Goal: while one message tries whether an endpoint is back, which may take long, only a few
    /// others of its topics wait. Oracle: the receipts.
    #[tokio::test(start_paused = true)]
    async fn little_waits_behind_a_message_that_tries() {
        let mut bench = Bench::new(ms(5));
        bench.push("orders", 1);
        bench.send();
        bench.end(&Shown::Failed(Failure::tried()));
        bench.push("orders", 1);
        bench.send();
        bench.push("orders", CONCURRENCY + 1);
        assert_eq!((bench.share.waiting, bench.refused.as_slice()), (CONCURRENCY, &[19][..]));
    }

    /// Goal: a message that cannot be sent shows neither that its endpoint is back nor how long its
    /// requests take. Oracle: the requests in flight, and how many messages may wait.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_cannot_be_sent_shows_nothing_about_its_endpoint() {
        let mut bench = Bench::new(ms(300));
        bench.run(ms(6_000), ms(100), 1).await;
        while !bench.requests.is_empty() {
            bench.end(&Shown::Failed(Failure::tried()));
        }
        let depth = bench.share.depth(Instant::now());
        for _ in 0..20 {
            bench.push("orders", 1);
            bench.send();
            bench.end(&Shown::Nothing);
            assert_eq!(bench.share.depth(Instant::now()), depth);
        }
        bench.push("orders", 5);
        bench.send();
        assert_eq!((bench.share.in_flight, bench.share.waiting), (1, 4), "one tries whether it is back");
        bench.end(&Shown::Answered);
        bench.send();
        assert_eq!((bench.share.in_flight, bench.share.waiting), (4, 0));
    }

    /// Goal: a single endpoint delays no other, so any number waits for it. Oracle: no receipts.
    #[tokio::test(start_paused = true)]
    async fn any_number_waits_for_an_endpoint_that_is_alone() {
        let mut bench = Bench::of(None, ms(1_000), &["orders"]);
        bench.run(ms(10_000), ms(100), 50).await;
        assert!(!bench.share.shorten(Instant::now()));
        assert!(bench.refused.is_empty() && bench.share.waiting > 4_000);
    }
}
