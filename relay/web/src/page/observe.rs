//! One query of the databases for all readers of the page, however many there are.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use operate::status::{PipelineStatus, status};
use operate::{Operator, OutboxPlace, PipelineConfig, Places, Role};
use outbox_log::EntryId;
use time::OffsetDateTime;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::samples::{Hour, STEP_SECONDS, STEPS, Sample, Samples, enqueued};

/// How long a picture is reused: any number of readers costs one query in this time.
const FRESH_FOR: Duration = Duration::from_millis(1_500);
/// Interval of the queries for plots, with or without readers.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of the queries while a reader follows.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);
/// After this number of queries, ages are shown again even if nothing has changed.
const QUIET_LOOKS: u32 = 5;

/// The pipelines at a point in time.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) at: OffsetDateTime,
    pub(crate) pipelines: Vec<(PipelineStatus, Hour)>,
}

/// Messages enqueued per second, by minute.
type Rates = Vec<Option<f64>>;

/// Queries the databases and keeps the latest picture.
pub(crate) struct Observer {
    pipelines: Vec<PipelineConfig>,
    places: Vec<Places>,
    begun_at: Instant,
    latest: Mutex<Option<(Instant, Arc<Picture>)>>,
    samples: StdMutex<BTreeMap<String, (Samples, Rates)>>,
    /// Number of changes, for readers who follow.
    changes: watch::Sender<u64>,
}

impl Observer {
    /// Creates an observer. Queries nothing yet.
    pub(crate) fn new(pipelines: Vec<PipelineConfig>) -> Self {
        let places = pipelines.iter().map(|pipeline| Places::new().outbox(pipeline)).collect();
        let (latest, samples) = (Mutex::default(), StdMutex::default());
        Self { pipelines, places, begun_at: Instant::now(), latest, samples, changes: watch::Sender::new(0) }
    }

    /// Returns a picture of the pipelines that is at most [`FRESH_FOR`] old. Cancel-safe.
    pub(crate) async fn picture(&self) -> Arc<Picture> {
        let mut latest = self.latest.lock().await;
        if let Some((at, picture)) = &*latest
            && at.elapsed() < FRESH_FOR
        {
            return Arc::clone(picture);
        }
        let picture = Arc::new(self.look().await);
        *latest = Some((Instant::now(), Arc::clone(&picture)));
        picture
    }

    /// Returns a receiver of changes. Queries run more often while it exists.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Queries regularly, more often while a reader follows, until it is dropped.
    pub(crate) async fn keep(&self) {
        let mut tick = interval(FOLLOW_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sampled_at: Option<Instant> = None;
        let (mut seen, mut quiet) = (0, 0);
        loop {
            tick.tick().await;
            let is_due = sampled_at.is_none_or(|at| at.elapsed() >= SAMPLE_INTERVAL);
            if !is_due && self.changes.receiver_count() == 0 {
                continue;
            }
            let picture = self.picture().await;
            if is_due {
                sampled_at = Some(Instant::now());
                self.sample(&picture).await;
            }
            let now = digest(&picture);
            quiet += 1;
            if now != seen || quiet >= QUIET_LOOKS {
                (seen, quiet) = (now, 0);
                self.changes.send_modify(|changes| *changes += 1);
            }
        }
    }

    async fn look(&self) -> Picture {
        let viewer = Operator::new("the page", Role::Viewer);
        let all = status(&self.pipelines, &viewer).await.unwrap_or_default();
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
            let sample = Sample { at, waiting, oldest_seconds, passed };
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            let (seen, enqueued) = samples.entry(status.pipeline.clone()).or_default();
            seen.add(sample);
            *enqueued = rates;
        }
    }
}

/// Returns the rates of messages enqueued within the last hour, with one look at the log for each
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
fn digest(picture: &Picture) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (status, _) in &picture.pipelines {
        let PipelineStatus { pipeline, state, holder, epoch, exceptions, paused, .. } = status;
        (pipeline, state, holder, epoch, exceptions, status.backlog_entries_max).hash(&mut hasher);
        (&status.problem, status.oldest_pending_id, status.held_back_by.is_some()).hash(&mut hasher);
        (status.standbys, status.broker_error.as_ref().map(|refusal| &refusal.error)).hash(&mut hasher);
        paused.iter().for_each(|pause| (&pause.paused, &pause.actor).hash(&mut hasher));
    }
    hasher.finish()
}
