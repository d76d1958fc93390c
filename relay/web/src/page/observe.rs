//! One query of the databases for all readers of the page, however many there are.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use inbox::ConsumerStatus;
use operate::consumers::{OwnConsumer, Searches};
use operate::status::{Depth, PipelineStatus, status_at};
use operate::{InboxConfig, Operator, OutboxPlace, PipelineConfig, Places, Role};
use outbox_log::{EntryId, ExceptionState};
use time::OffsetDateTime;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::beside::Beside;
use super::context::Nav;
use super::samples::{Hour, STEP_SECONDS, STEPS, Sample, Samples, enqueued};

/// How long a picture is reused: any number of readers costs one query in this time.
const FRESH_FOR: Duration = Duration::from_millis(1_500);
/// Interval of the queries for plots, with or without readers.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of the queries while a reader follows.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);
/// The pauses after which followers of a decision look again at what became of it.
const AFTER_DECISION: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3)];
/// After this number of queries, ages are shown again even if nothing has changed.
const QUIET_LOOKS: u32 = 5;
/// Interval of the queries for the size and the age of outboxes.
const HISTORY_INTERVAL: Duration = Duration::from_secs(60);
/// How long a request counts as a reader.
const READ_FOR: Duration = Duration::from_secs(60);
/// How long a request waits for consumers, keys and sagas if they were not read recently.
const BESIDE_WAIT: Duration = Duration::from_secs(2);

/// The pipelines at a point in time.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) at: OffsetDateTime,
    pub(crate) pipelines: Vec<(PipelineStatus, Hour)>,
}

/// The latest picture, and how long it took.
struct Latest {
    taken_at: Instant,
    lasted: Duration,
    /// The time of the last query that included the sizes of outboxes.
    history_at: Instant,
    picture: Arc<Picture>,
}

/// The consumers of this process, by name: a process can run several with one name.
pub(crate) type OwnConsumers = BTreeMap<String, Vec<OwnConsumer>>;

/// Messages enqueued per second, by minute.
type Rates = Vec<Option<f64>>;

/// Queries the databases and keeps the latest picture.
pub(crate) struct Observer {
    pipelines: Vec<PipelineConfig>,
    inboxes: Vec<InboxConfig>,
    /// The consumers of this process.
    consumers: Vec<ConsumerStatus>,
    places: Vec<Places>,
    begun_at: Instant,
    latest: Mutex<Option<Latest>>,
    samples: StdMutex<BTreeMap<String, (Samples, Rates)>>,
    /// When the database of a pipeline was first seen not to answer.
    away_since: StdMutex<BTreeMap<String, Instant>>,
    beside: watch::Sender<Arc<Beside>>,
    /// The searches for messages that consumers do not take, for all readers.
    searches: Searches,
    beside_wanted: Notify,
    read_at: StdMutex<Option<Instant>>,
    nav: watch::Sender<Arc<Nav>>,
    /// Number of changes, for readers who follow.
    changes: watch::Sender<u64>,
}

impl Observer {
    /// Creates an observer. Queries nothing yet.
    pub(crate) fn new(pipelines: Vec<PipelineConfig>, inboxes: Vec<InboxConfig>) -> Self {
        Self {
            places: pipelines.iter().map(|pipeline| Places::new().outbox(pipeline)).collect(),
            pipelines,
            inboxes,
            consumers: Vec::new(),
            begun_at: Instant::now(),
            latest: Mutex::default(),
            samples: StdMutex::default(),
            away_since: StdMutex::default(),
            beside: watch::Sender::default(),
            searches: Searches::default(),
            beside_wanted: Notify::new(),
            read_at: StdMutex::default(),
            nav: watch::Sender::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Adds the consumers of this process.
    pub(crate) fn watching(self, consumers: Vec<ConsumerStatus>) -> Self {
        Self { consumers, ..self }
    }

    /// Returns the consumers of this process, by name. Answers from memory.
    pub(crate) fn own_consumers(&self) -> OwnConsumers {
        let mut all = OwnConsumers::new();
        for own in self.consumers.iter().map(OwnConsumer::of) {
            all.entry(own.consumer.clone()).or_default().push(own);
        }
        all
    }

    /// Returns the searches for messages that consumers do not take.
    pub(crate) fn searches(&self) -> &Searches {
        &self.searches
    }

    /// Returns a picture of the pipelines that is at most [`FRESH_FOR`] old, or as old as the
    /// queries took. Cancel-safe.
    pub(crate) async fn picture(&self) -> Arc<Picture> {
        let mut latest = self.latest.lock().await;
        if let Some(Latest { taken_at, lasted, picture, .. }) = &*latest
            && taken_at.elapsed() < FRESH_FOR.max(*lasted)
        {
            return Arc::clone(picture);
        }
        let begun_at = Instant::now();
        let before = latest.as_ref().filter(|before| before.history_at.elapsed() < HISTORY_INTERVAL);
        let picture = Arc::new(self.look(before).await);
        let history_at = before.map_or(begun_at, |before| before.history_at);
        let now = Instant::now();
        let lasted = now - begun_at;
        *latest = Some(Latest { taken_at: now, lasted, history_at, picture: Arc::clone(&picture) });
        drop(latest);
        self.count(&picture);
        picture
    }

    /// Returns consumers, stuck keys and stuck sagas. Waits briefly if they were not read recently;
    /// after that they are unknown. Cancel-safe.
    pub(crate) async fn beside(&self) -> Arc<Beside> {
        let mut looks = self.beside.subscribe();
        let is_old = |beside: &Beside| beside.read_at.is_none_or(|at| at.elapsed() > READ_FOR);
        if is_old(&looks.borrow()) {
            self.beside_wanted.notify_one();
            let _ = tokio::time::timeout(BESIDE_WAIT, looks.changed()).await;
        }
        let beside = looks.borrow();
        if is_old(&beside) { Arc::default() } else { Arc::clone(&beside) }
    }

    /// Returns the counts of the navigation, which change with every query.
    pub(crate) fn nav(&self) -> watch::Receiver<Arc<Nav>> {
        self.nav.subscribe()
    }

    /// Returns a receiver of changes. Queries run more often while it exists.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Tells followers several times within the next seconds that something has changed: messages
    /// that were requeued and died again at once are as many as before. Cancel-safe.
    pub(crate) async fn tell_after_decision(&self) {
        for pause in AFTER_DECISION {
            tokio::time::sleep(pause).await;
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Records that a user reads the page: consumers, keys and sagas are queried for a while.
    pub(crate) fn mark_read(&self) {
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Completes when no one has read or followed the page for this long. Cancel-safe.
    pub(crate) async fn unread(&self, time: Duration) {
        loop {
            let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet = match read_at {
                _ if self.changes.receiver_count() > 0 => Duration::ZERO,
                Some(at) => at.elapsed(),
                None => time,
            };
            if quiet >= time {
                return;
            }
            tokio::time::sleep(time - quiet).await;
        }
    }

    fn has_readers(&self) -> bool {
        let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.changes.receiver_count() > 0 || read_at.is_some_and(|at| at.elapsed() < READ_FOR)
    }

    /// Queries regularly, more often while a reader follows, until it is dropped.
    pub(crate) async fn keep(&self) {
        tokio::join!(self.keep_looking(), self.keep_sampling(), self.keep_beside());
    }

    async fn keep_looking(&self) {
        let mut tick = interval(FOLLOW_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut quiet) = (0, 0);
        loop {
            tick.tick().await;
            if self.changes.receiver_count() == 0 {
                continue;
            }
            let now = digest(&*self.picture().await, &self.own_consumers());
            quiet += 1;
            if now != seen || quiet >= QUIET_LOOKS {
                (seen, quiet) = (now, 0);
                self.changes.send_modify(|changes| *changes += 1);
            }
        }
    }

    async fn keep_sampling(&self) {
        let mut tick = interval(SAMPLE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let picture = self.picture().await;
            self.sample(&picture).await;
        }
    }

    async fn keep_beside(&self) {
        loop {
            let pause = tokio::time::sleep(SAMPLE_INTERVAL);
            tokio::select! {
                () = pause => {}
                () = self.beside_wanted.notified() => {}
            }
            if !self.has_readers() {
                continue;
            }
            let before = Arc::clone(&self.beside.borrow());
            self.show_beside(before.with_consumers(&self.pipelines, &self.inboxes, &self.searches).await)
                .await;
            // The query of an unreachable database takes long to fail, and consumers do not wait
            // for it.
            let before = Arc::clone(&self.beside.borrow());
            if before.is_due() {
                self.show_beside(before.with_tables(&self.pipelines, &self.inboxes).await).await;
            }
        }
    }

    async fn show_beside(&self, now: Beside) {
        let before = self.beside.send_replace(Arc::new(now));
        let latest = self.latest.lock().await.as_ref().map(|latest| Arc::clone(&latest.picture));
        if let Some(picture) = latest {
            self.count(&picture);
        }
        if self.beside.borrow().tells_more_than(&before) {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Updates the counts of the navigation.
    fn count(&self, picture: &Picture) {
        let beside = Arc::clone(&self.beside.borrow());
        let mut nav = Nav { keys: beside.keys, sagas: beside.sagas, ..Nav::default() };
        for (status, _) in &picture.pipelines {
            for (state, count) in
                [(ExceptionState::Dead, &mut nav.dead), (ExceptionState::Held, &mut nav.held)]
            {
                let number = (status.state.is_known()).then(|| status.parked(state));
                count.add(number, status.exceptions_are_at_least);
            }
        }
        for line in &beside.consumers {
            let dead = line.activity.as_ref().map_or(0, |activity| activity.dead);
            nav.dead.add(Some(dead), line.letters_are_at_least());
        }
        beside.away.iter().for_each(|_| nav.dead.add(None, false));
        self.nav.send_if_modified(|now| {
            let is_new = **now != nav;
            *now = Arc::new(nav);
            is_new
        });
    }

    /// Queries all pipelines. Takes the sizes of outboxes from `before` if there is one.
    async fn look(&self, before: Option<&Latest>) -> Picture {
        let viewer = Operator::new("the page", Role::Viewer);
        let depth = if before.is_some() { Depth::WithoutHistory } else { Depth::WithHistory };
        let mut all = status_at(&self.pipelines, &viewer, depth).await.unwrap_or_default();
        if let Some(before) = before {
            for (status, (known, _)) in all.iter_mut().zip(&before.picture.pipelines) {
                status.history_age_seconds = known.history_age_seconds;
                status.history_bytes = known.history_bytes;
                status.history_held_back_by.clone_from(&known.history_held_back_by);
            }
        }
        self.watch_databases(&mut all);
        let now = self.begun_at.elapsed().as_secs();
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let pipelines = all.into_iter().map(|status| {
            let hour = match samples.get(&status.pipeline) {
                Some((seen, enqueued)) => Hour { enqueued: enqueued.clone(), ..seen.hour(now) },
                None => Samples::default().hour(now),
            };
            (status, hour)
        });
        Picture { at: OffsetDateTime::now_utc(), pipelines: pipelines.collect() }
    }

    /// Adds how long databases have not answered. Asks the inboxes anew when one stops or returns:
    /// they may be in the same database.
    fn watch_databases(&self, all: &mut [PipelineStatus]) {
        let mut away_since = self.away_since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = away_since.len();
        let mut is_new = false;
        for status in all {
            if status.state.is_known() {
                away_since.remove(&status.pipeline);
                continue;
            }
            let since = away_since.entry(status.pipeline.clone()).or_insert_with(|| {
                is_new = true;
                Instant::now()
            });
            status.away_for = Some(since.elapsed());
        }
        if is_new || away_since.len() != before {
            self.beside_wanted.notify_one();
        }
    }

    /// Adds a point to each plot. An unreachable database leaves a gap.
    async fn sample(&self, picture: &Picture) {
        let at = self.begun_at.elapsed().as_secs();
        let known = self.pipelines.iter().zip(&self.places);
        for ((status, _), (pipeline, places)) in picture.pipelines.iter().zip(known) {
            // The file with its URL may have appeared since.
            let opened =
                if places.outboxes().is_empty() { Places::new().outbox(pipeline) } else { Places::new() };
            let place = places.outboxes().first().or(opened.outboxes().first());
            let (Some(waiting), Some(place)) = (status.backlog_entries_max, place) else { continue };
            let extent = place.entries.extent(&place.pipeline).await.ok();
            let newest = extent.as_ref().and_then(|extent| extent.newest);
            let rates = match &extent {
                Some(extent) => rates(place, extent.now, newest).await,
                None => Vec::new(),
            };
            let unread = i64::try_from(status.unread_max.unwrap_or_default()).unwrap_or(i64::MAX);
            let passed = newest.map(|newest| newest.0.saturating_sub(unread));
            let oldest_seconds = status.oldest_pending_age_seconds.unwrap_or_default();
            let dead = status.parked(ExceptionState::Dead);
            let sample = Sample { at, waiting, oldest_seconds, dead, passed };
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            let (seen, enqueued) = samples.entry(status.pipeline.clone()).or_default();
            seen.add(sample);
            *enqueued = rates;
        }
    }
}

/// Returns the rates of messages enqueued within the last hour, with one query of the log for each
/// minute.
async fn rates(place: &OutboxPlace, now: OffsetDateTime, newest: Option<EntryId>) -> Rates {
    let back = |steps: usize| now - Duration::from_secs(STEP_SECONDS * steps as u64);
    let moments: Vec<OffsetDateTime> = (1..=STEPS).rev().map(back).collect();
    match place.entries.firsts(&moments).await {
        Ok(firsts) => {
            let firsts: Vec<Option<i64>> = firsts.into_iter().map(|id| id.map(|id| id.0)).collect();
            enqueued(&firsts, newest.map(|id| id.0))
        }
        Err(_) => Vec::new(),
    }
}

/// Returns a number that changes when something worth showing changes. Excludes ages, which always
/// change.
fn digest(picture: &Picture, own: &OwnConsumers) -> u64 {
    let mut hasher = DefaultHasher::new();
    for own in own.values().flatten() {
        let wait = own.wait();
        (&own.consumer, &own.reads, std::mem::discriminant(&own.state)).hash(&mut hasher);
        (wait.map(|wait| (wait.why, wait.passes)), own.held_keys).hash(&mut hasher);
    }
    for (status, _) in &picture.pipelines {
        let PipelineStatus { pipeline, state, holder, epoch, exceptions, paused, .. } = status;
        (pipeline, state, holder, epoch, exceptions, status.backlog_entries_max).hash(&mut hasher);
        (&status.problem, status.oldest_pending_id, status.held_back_by.is_some()).hash(&mut hasher);
        (status.standbys, status.broker_error.as_ref().map(|refusal| &refusal.error)).hash(&mut hasher);
        paused.iter().for_each(|pause| (&pause.paused, &pause.actor).hash(&mut hasher));
        status.causes.values().for_each(|cause| (&cause.text, cause.others).hash(&mut hasher));
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use operate::status::PipelineState;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_database_is_away_since_it_was_first_seen_so() {
        let observer = Observer::new(Vec::new(), Vec::new());
        let look = |state| {
            let mut all = [PipelineStatus { state, ..PipelineStatus::of("orders", None, None) }];
            observer.watch_databases(&mut all);
            all[0].away_for
        };
        let wanted = async || {
            tokio::time::timeout(Duration::from_millis(1), observer.beside_wanted.notified()).await.is_ok()
        };
        assert_eq!(look(PipelineState::Leading), None);
        assert!(!wanted().await);
        assert_eq!(look(PipelineState::Unknown), Some(Duration::ZERO));
        assert!(wanted().await, "its consumers may be away too");
        tokio::time::advance(Duration::from_secs(90)).await;
        assert!(look(PipelineState::Unknown) >= Some(Duration::from_secs(90)));
        assert!(!wanted().await);
        assert_eq!(look(PipelineState::Leading), None);
        assert!(wanted().await);
    }

    /// Goal: an operator sees within seconds that requeued messages have died again, although their
    /// number is the same. Oracle: the changes that a follower gets although nothing else changes.
    #[tokio::test(start_paused = true)]
    async fn what_became_of_a_decision_is_told_within_seconds() {
        let observer = Observer::new(Vec::new(), Vec::new());
        let mut follower = observer.follow();
        let begun = Instant::now();
        let told = async {
            let mut times = Vec::new();
            while times.len() < AFTER_DECISION.len() {
                follower.changed().await.unwrap();
                times.push(begun.elapsed().as_secs());
            }
            times
        };
        let ((), times) = tokio::join!(observer.tell_after_decision(), told);
        assert_eq!(times, [1, 3, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_unread_after_its_last_reader() {
        let observer = Observer::new(Vec::new(), Vec::new());
        let minute = Duration::from_secs(60);
        observer.mark_read();
        let begun = Instant::now();
        tokio::join!(observer.unread(minute), async {
            tokio::time::sleep(minute / 2).await;
            observer.mark_read();
        });
        assert_eq!(begun.elapsed(), minute * 3 / 2);
        let follower = observer.follow();
        assert!(tokio::time::timeout(minute * 10, observer.unread(minute)).await.is_err());
        drop(follower);
        tokio::time::timeout(minute, observer.unread(minute)).await.unwrap();
    }
}
