//! The task of a session: sorts submissions by endpoint, and keeps a bounded number of requests in
//! flight.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::depth::WAIT_MAX;
use super::fault::Shown;
use super::send::{Job, Sender};
use super::share::{Bounds, Next, Share};

/// How long a request counts among those in flight. One that waits longer for its answer has a slow
/// endpoint, which must not slow down others. The bound then applies only to its own endpoint.
const COUNTED: Duration = Duration::from_secs(1);

/// Maximum submissions that are sorted at once.
const SORT_MAX: usize = 1_024;

/// After this many failures of idle endpoints, the endpoints without messages may be forgotten.
const FAILED_MAX: usize = 10_000;

/// Maximum messages that wait in a share, as a multiple of the requests in flight. Only a receiver
/// that answers within some 15 ms gets as many; for a slower one, as many may wait as are sent in
/// half a second.
const WAITING_FACTOR: usize = 32;

/// Maximum requests in flight that no longer count. Each has a connection, so this stays below the
/// number of files that services may have open.
const SLOW_MAX: usize = 2_048;

/// Bounds of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Of one share.
    pub(super) share: Bounds,
    /// Maximum requests in flight, not counting slow ones.
    pub(super) requests_max: usize,
    /// Maximum requests in flight that are slow.
    pub(super) slow_max: usize,
}

impl Pace {
    /// `is_alone`: there is only one endpoint.
    pub(super) fn new(concurrency: usize, requests_max: usize, is_alone: bool) -> Self {
        let waiting_max = (!is_alone).then_some(concurrency * WAITING_FACTOR);
        Self { share: Bounds { concurrency, waiting_max }, requests_max, slow_max: SLOW_MAX }
    }
}

/// The task's state.
pub(super) struct Dispatcher {
    submitted: mpsc::UnboundedReceiver<Job>,
    sender: Arc<Sender>,
    pace: Pace,
    shares: HashMap<Arc<str>, Share>,
    /// The shares that may send, each once.
    turns: VecDeque<Arc<str>>,
    requests: JoinSet<Shown>,
    in_flight: HashMap<Id, Request>,
    counted: Counted,
    /// When to check whether more messages wait in the shares than are sent soon. If the requests
    /// of a share hang, no other event may trigger this check.
    look_at: Option<Instant>,
    /// How many endpoints became idle and known only because they failed, since such endpoints were
    /// last forgotten.
    failed: usize,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    share: Arc<str>,
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
    /// Includes requests that were answered meanwhile.
    until: VecDeque<(Instant, Id)>,
}

impl Dispatcher {
    pub(super) fn new(submitted: mpsc::UnboundedReceiver<Job>, sender: Arc<Sender>, pace: Pace) -> Self {
        Self {
            submitted,
            sender,
            pace,
            shares: HashMap::new(),
            turns: VecDeque::new(),
            requests: JoinSet::new(),
            in_flight: HashMap::new(),
            counted: Counted::default(),
            look_at: None,
            failed: 0,
        }
    }

    /// Works until nothing more can be submitted and everything is answered. Dropping the future
    /// cancels all requests; their messages are answered as unknown.
    pub(super) async fn run(mut self) {
        let mut open = true;
        let mut arrived = Vec::with_capacity(SORT_MAX);
        loop {
            let due = [self.dispatch(), self.look()].into_iter().flatten().min();
            // Turns of endpoints that have nothing to send may be left over.
            if !open && self.requests.is_empty() {
                return;
            }
            let time = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = self.submitted.recv_many(&mut arrived, SORT_MAX), if open => open = count > 0,
                Some(finished) = self.requests.join_next_with_id() => self.finish(finished),
                () = time => {}
            }
            arrived.drain(..).for_each(|job| self.push(job));
        }
    }

    fn push(&mut self, job: Job) {
        if let Some(failure) = self.sender.stopped(&job.endpoint) {
            return job.fail(&failure);
        }
        let share = job.endpoint.share.clone();
        self.shares.entry(share.clone()).or_insert_with(|| Share::new(self.pace.share)).push(job);
        self.take_turn(&share);
        self.look_at.get_or_insert_with(|| Instant::now() + WAIT_MAX);
    }

    /// Looks at the shares if it is time. Returns when to do so again, if messages wait.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if self.look_at.is_some_and(|at| at <= now) {
            let mut waits = false;
            for share in self.shares.values_mut() {
                waits |= share.shorten(now);
            }
            self.look_at = waits.then(|| now + WAIT_MAX);
        }
        self.look_at
    }

    /// Puts a share among the turns, if it may send. Forgets it if nothing is known about it.
    fn take_turn(&mut self, name: &Arc<str>) {
        let Some(share) = self.shares.get_mut(name) else { return };
        if share.is_empty() {
            self.shares.remove(name);
        } else if share.may_send() && !share.has_turn {
            share.has_turn = true;
            self.turns.push_back(name.clone());
        }
    }

    /// Starts requests as far as the bounds allow, of each endpoint in turn. Returns when there
    /// will be room for more, if there is none now.
    fn dispatch(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.stop_counting(now);
        let all_max = self.pace.requests_max + self.pace.slow_max;
        while self.counted.len < self.pace.requests_max
            && self.in_flight.len() < all_max
            && let Some(name) = self.turns.pop_front()
        {
            let Some(share) = self.shares.get_mut(&name) else { continue };
            share.has_turn = false;
            let Some(Next { job, streak }) = share.next(now) else { continue };
            let uri = job.endpoint.target.uri.clone();
            let task = self.requests.spawn(Arc::clone(&self.sender).send(job, streak));
            self.counted.len += 1;
            self.counted.until.push_back((now + COUNTED, task.id()));
            self.take_turn(&name);
            self.in_flight.insert(task.id(), Request { share: name, uri, since: now, is_counted: true });
        }
        if self.turns.is_empty() { None } else { self.counted.until.front().map(|(until, _)| *until) }
    }

    /// Stops counting the requests that have been in flight for long enough. Afterwards the first
    /// one of the queue, if any, still counts.
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

    fn finish(&mut self, finished: Result<(Id, Shown), JoinError>) {
        let (id, shown) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(%error, "an HTTP request failed because of a bug; its message is answered as unknown");
                (error.id(), Shown::Nothing)
            }
        };
        let Some(Request { share: name, uri, since, is_counted }) = self.in_flight.remove(&id) else {
            return;
        };
        self.counted.len -= usize::from(is_counted);
        let Some(share) = self.shares.get_mut(&name) else { return };
        let is_left = share.finish(&uri, since, &shown);
        self.take_turn(&name);
        if is_left {
            self.forget_idle();
        }
    }

    /// Counts an endpoint that is known only because it failed. Forgets the endpoints without
    /// messages if many may have failed.
    fn forget_idle(&mut self) {
        self.failed += 1;
        if self.failed < FAILED_MAX {
            return;
        }
        self.failed = 0;
        if self.shares.values().map(Share::idle_len).sum::<usize>() >= FAILED_MAX / 2 {
            self.shares.values_mut().for_each(Share::forget_idle);
            self.shares.retain(|_, share| !share.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use message::{EventType, Message, Receipts, Ticket, Topic};

    use super::*;
    use crate::http::client::Connections;
    use crate::http::endpoints::Endpoints;
    use crate::http::fault::Failure;
    use crate::http::{AllowedHost, Config};
    use crate::pending::Pending;

    /// A dispatcher whose messages name their endpoints, and whose requests fail at once.
    struct Bench {
        dispatcher: Dispatcher,
        endpoints: Endpoints,
        receipts: Receipts,
    }

    impl Bench {
        fn new() -> Self {
            let hosts = ["hooks.example", "*.hooks.example"];
            let hosts = hosts.map(|host| (host.to_owned(), AllowedHost::default()));
            let config = Config::default().endpoint_header("endpoint").hosts(hosts.into());
            let client = Connections::new(&config, config.check().unwrap()).unwrap().client();
            let sender = Arc::new(Sender::new(&config, client, Arc::default()));
            let dispatcher = Dispatcher::new(mpsc::unbounded_channel().1, sender, Pace::new(4, 64, false));
            Self { dispatcher, endpoints: Endpoints::new(&config), receipts: Receipts::channel().0 }
        }

        fn push(&mut self, url: &str) {
            let mut message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
            message.headers.insert("endpoint", url).unwrap();
            let endpoint = self.endpoints.of(&message).unwrap();
            let pending = Pending::new(Ticket(1), self.receipts.clone());
            self.dispatcher.push(Job { message: message.into(), endpoint, pending });
        }

        /// Begins the next request, and ends it without an answer of its endpoint.
        async fn fail(&mut self) {
            let dispatcher = &mut self.dispatcher;
            let name = dispatcher.turns.pop_front().unwrap();
            let share = dispatcher.shares.get_mut(&name).unwrap();
            share.has_turn = false;
            let since = Instant::now();
            let uri = share.next(since).unwrap().job.endpoint.target.uri.clone();
            let silence = Shown::Failed(Failure::of_silence(Duration::ZERO));
            let task = dispatcher.requests.spawn(std::future::ready(silence));
            dispatcher.in_flight.insert(task.id(), Request { share: name, uri, since, is_counted: false });
            let finished = dispatcher.requests.join_next_with_id().await.unwrap();
            dispatcher.finish(finished);
        }

        /// Returns how many endpoints are known only because they failed.
        fn idle_len(&self) -> usize {
            self.dispatcher.shares.values().map(Share::idle_len).sum()
        }
    }

    /// Goal: messages that name any number of endpoints, all of which fail, do not fill the memory.
    /// Oracle: how many are known, while far more fail on one host, and on a host each; one whose
    /// message waits stays.
    #[tokio::test]
    async fn endpoints_that_fail_are_forgotten_once_there_are_many() {
        const URLS: usize = 5 * FAILED_MAX / 2;
        for is_one_host in [true, false] {
            let mut bench = Bench::new();
            bench.push("https://waiting.hooks.example/");
            let waiting = bench.dispatcher.turns.pop_front().unwrap();
            let mut most = 0;
            for number in 0..URLS {
                let below = if is_one_host { String::new() } else { format!("{number}.") };
                bench.push(&format!("https://{below}hooks.example/{number}"));
                bench.fail().await;
                if number % 1_000 == 0 {
                    most = most.max(bench.idle_len());
                }
            }
            assert!((FAILED_MAX / 2..=FAILED_MAX).contains(&most), "{most}");
            assert!(bench.dispatcher.shares.len() <= FAILED_MAX + 1, "{}", bench.dispatcher.shares.len());
            assert!(bench.dispatcher.shares.contains_key(&waiting));
        }
    }
}
