//! Work on a pipeline that takes longer than an answer may take: the doctor, and comparisons. The
//! last result of each pipeline stays in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operate::seconds::age;
use operate::verify::Progress;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Maximum jobs of one kind at once; each has sessions in the database, the broker and the inboxes.
const RUNNING_MAX: usize = 2;
/// Maximum time of a job.
const LASTS_MAX: Duration = Duration::from_secs(1_800);

/// The last job about a pipeline.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) begun_at: OffsetDateTime,
    /// The operator who asked for it.
    pub(crate) by: String,
    pub(crate) end: End<T>,
}

/// The end of a job.
#[derive(Debug)]
pub(crate) enum End<T> {
    /// It is running.
    Running,
    /// Its result.
    Done(Arc<T>),
    /// The reason why it has none.
    Failed(String),
}

// Not derived: a result is shared, not cloned.
impl<T> Clone for End<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Running => Self::Running,
            Self::Done(result) => Self::Done(Arc::clone(result)),
            Self::Failed(why) => Self::Failed(why.clone()),
        }
    }
}

impl<T> Clone for Job<T> {
    fn clone(&self) -> Self {
        Self { begun_at: self.begun_at, by: self.by.clone(), end: self.end.clone() }
    }
}

impl<T> Job<T> {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.end, End::Running)
    }
}

/// The progress of a job.
#[derive(Debug, Default)]
pub(crate) struct Told {
    what: Mutex<String>,
    rows: AtomicU64,
}

impl Told {
    /// Returns the current activity.
    pub(crate) fn what(&self) -> String {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of rows read so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Sets the number of rows, or of messages that were sent.
    pub(crate) fn count(&self, rows: u64) {
        self.rows.store(rows, Ordering::Relaxed);
    }

    fn tell(&self, what: String) {
        *self.what.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// Writes the progress of a comparison down.
pub(crate) struct Telling(pub(crate) Arc<Told>);

impl Progress for Telling {
    fn say(&self, what: String) {
        self.0.tell(what);
    }

    fn rows(&self, from: &'static str, count: usize) {
        self.0.tell(from.to_owned());
        self.0.rows.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn waiting(&self, messages: usize, grace: Duration) {
        let grace = age(grace);
        self.0
            .tell(format!("{messages} messages may still be in flight: waiting {grace} for each to arrive"));
    }
}

/// A job that has begun.
pub(crate) struct Running<T> {
    state: watch::Sender<Job<T>>,
    stop: CancellationToken,
    /// Its progress.
    pub(crate) told: Arc<Told>,
}

impl<T: Send + Sync + 'static> Running<T> {
    /// Carries out the work in a separate task, until it ends, is stopped, or takes longer than
    /// half an hour. The work must be cancel-safe.
    pub(crate) fn carry_out(
        self,
        work: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> watch::Receiver<Job<T>> {
        let stop = self.stop.clone();
        self.follow(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => Err(String::from("it was stopped")),
                done = work => done,
                () = tokio::time::sleep(LASTS_MAX) => Err(format!("it was stopped after {}", age(LASTS_MAX))),
            }
        })
    }

    /// Like [`carry_out`](Self::carry_out), for work that must not be dropped: it stops once its
    /// token is cancelled.
    pub(crate) fn carry_out_whole<F>(
        self,
        work: impl FnOnce(CancellationToken) -> F,
    ) -> watch::Receiver<Job<T>>
    where
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let stop = self.stop.clone();
        let mut work = Box::pin(work(stop.clone()));
        self.follow(async move {
            if let Ok(done) = tokio::time::timeout(LASTS_MAX, &mut work).await {
                return done;
            }
            stop.cancel();
            work.await
        })
    }

    fn follow(
        self,
        work: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> watch::Receiver<Job<T>> {
        let state = self.state;
        let seen = state.subscribe();
        let work = tokio::spawn(work);
        tokio::spawn(async move {
            let end = match work.await {
                Ok(Ok(result)) => End::Done(Arc::new(result)),
                Ok(Err(why)) => End::Failed(why),
                Err(_) => End::Failed(String::from("the program failed: the relay's log has the reason")),
            };
            state.send_modify(|job| job.end = end);
        });
        seen
    }
}

/// The outcome of beginning a job.
pub(crate) enum Begun<T> {
    /// It may run.
    New(Running<T>),
    /// It has begun before, and may have ended.
    Before(watch::Receiver<Job<T>>),
    /// One about this pipeline is running.
    Running(watch::Receiver<Job<T>>),
    /// Too many are running.
    TooMany,
}

struct Kept<T> {
    id: Uuid,
    seen: watch::Receiver<Job<T>>,
    stop: CancellationToken,
    told: Arc<Told>,
}

impl<T> Kept<T> {
    fn is_running(&self) -> bool {
        self.seen.borrow().is_running()
    }
}

/// The last job of one kind about each pipeline.
pub(crate) struct Jobs<T>(Mutex<HashMap<String, Kept<T>>>);

/// A job with its progress.
pub(crate) struct Last<T> {
    pub(crate) job: Job<T>,
    pub(crate) told: Arc<Told>,
    /// Whether an operator has asked to stop it.
    pub(crate) is_stopping: bool,
}

impl<T> Jobs<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Begins a job, unless it is the last one about the pipeline, or one is running. `stop` stops
    /// it.
    pub(crate) fn begin(&self, pipeline: &str, by: &str, id: Uuid, stop: CancellationToken) -> Begun<T> {
        let mut jobs = self.lock();
        if let Some(last) = jobs.get(pipeline).filter(|job| job.id == id) {
            return Begun::Before(last.seen.clone());
        }
        if let Some(running) = jobs.get(pipeline).filter(|job| job.is_running()) {
            return Begun::Running(running.seen.clone());
        }
        if jobs.values().filter(|job| job.is_running()).count() >= RUNNING_MAX {
            return Begun::TooMany;
        }
        let job = Job { begun_at: OffsetDateTime::now_utc(), by: by.to_owned(), end: End::Running };
        let state = watch::Sender::new(job);
        let told = Arc::<Told>::default();
        let kept = Kept { id, seen: state.subscribe(), stop: stop.clone(), told: Arc::clone(&told) };
        jobs.insert(pipeline.to_owned(), kept);
        Begun::New(Running { state, stop, told })
    }

    /// Returns whether this is the last job about a pipeline.
    pub(crate) fn has_begun(&self, pipeline: &str, id: Uuid) -> bool {
        self.lock().get(pipeline).is_some_and(|job| job.id == id)
    }

    /// Returns the last job about a pipeline.
    pub(crate) fn last(&self, pipeline: &str) -> Option<Last<T>> {
        self.lock().get(pipeline).map(|kept| Last {
            job: kept.seen.borrow().clone(),
            told: Arc::clone(&kept.told),
            is_stopping: kept.stop.is_cancelled(),
        })
    }

    /// Stops the job about a pipeline. Returns whether it was running.
    pub(crate) fn stop(&self, pipeline: &str) -> bool {
        let jobs = self.lock();
        let running = jobs.get(pipeline).filter(|job| job.is_running());
        running.inspect(|job| job.stop.cancel()).is_some()
    }

    /// Returns the jobs that are running and are about to be stopped, and logs them as `what`.
    pub(crate) fn about_to_stop(&self, what: &'static str) -> Vec<watch::Receiver<Job<T>>> {
        let jobs = self.lock();
        let running = jobs.iter().filter(|(_, job)| job.is_running());
        let running = running.map(|(pipeline, job)| {
            let by = job.seen.borrow().by.clone();
            tracing::info!(pipeline, by, "{what} from the page is stopped, because the relay stops");
            job.seen.clone()
        });
        running.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a job has ended, but not for longer than this. It continues in either case.
pub(crate) async fn wait_at_most<T>(patience: Duration, mut seen: watch::Receiver<Job<T>>) {
    drop(tokio::time::timeout(patience, seen.wait_for(|job| !job.is_running())).await);
}

/// Waits until these jobs have ended.
pub(crate) async fn all_ended<T>(jobs: Vec<watch::Receiver<Job<T>>>) {
    for mut seen in jobs {
        drop(seen.wait_for(|job| !job.is_running()).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(begun: Begun<u32>) -> Running<u32> {
        match begun {
            Begun::New(running) => running,
            Begun::Before(_) => panic!("it has begun before"),
            Begun::Running(_) => panic!("it is running"),
            Begun::TooMany => panic!("too many are running"),
        }
    }

    fn begin(jobs: &Jobs<u32>, pipeline: &str, by: &str) -> Begun<u32> {
        jobs.begin(pipeline, by, Uuid::now_v7(), CancellationToken::new())
    }

    async fn ended(mut seen: watch::Receiver<Job<u32>>) -> End<u32> {
        seen.wait_for(|job| !job.is_running()).await.unwrap().end.clone()
    }

    #[tokio::test]
    async fn one_of_a_pipeline_and_few_at_once() {
        let jobs = Jobs::new();
        assert!(jobs.last("orders").is_none() && !jobs.stop("orders"));
        let orders = new(begin(&jobs, "orders", "ann"));
        assert!(matches!(begin(&jobs, "orders", "bob"), Begun::Running(_)));
        let bills = new(begin(&jobs, "bills", "bob"));
        assert!(matches!(begin(&jobs, "third", "bob"), Begun::TooMany));
        let failed = ended(bills.carry_out(async { Err(String::from("no answer")) })).await;
        assert!(matches!(failed, End::Failed(why) if why == "no answer"));
        new(begin(&jobs, "third", "bob"));
        let done = ended(orders.carry_out(async { Ok(7) })).await;
        assert!(matches!(done, End::Done(result) if *result == 7));
        let last = jobs.last("orders").unwrap();
        assert_eq!((last.job.is_running(), last.job.by.as_str()), (false, "ann"));
        // Its result stays until the next one begins.
        new(begin(&jobs, "orders", "bob"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_ends_when_it_is_stopped_or_takes_too_long_or_panics() {
        let jobs = Jobs::new();
        let seen = new(begin(&jobs, "orders", "ann")).carry_out(std::future::pending());
        assert!(jobs.stop("orders"));
        assert!(matches!(ended(seen).await, End::Failed(why) if why == "it was stopped"));
        assert!(!jobs.stop("orders"), "it has ended");
        let seen = new(begin(&jobs, "orders", "ann")).carry_out(std::future::pending());
        assert!(!jobs.last("orders").unwrap().is_stopping);
        assert!(matches!(ended(seen).await, End::Failed(why) if why == "it was stopped after 30m"));
        let seen = new(begin(&jobs, "orders", "ann")).carry_out(async { panic!("a fault of the program") });
        assert!(matches!(ended(seen).await, End::Failed(why) if why.contains("the program failed")));
    }

    /// Goal: work that sends messages is stopped by its token, and never dropped. Oracle: what it
    /// returns after the stop, and after half an hour.
    #[tokio::test(start_paused = true)]
    async fn work_that_must_not_be_dropped_stops_by_itself() {
        let jobs = Jobs::new();
        let until_stopped = |stop: CancellationToken| async move {
            stop.cancelled().await;
            Ok(7)
        };
        let seen = new(begin(&jobs, "orders", "ann")).carry_out_whole(until_stopped);
        assert!(jobs.stop("orders"));
        assert!(matches!(ended(seen).await, End::Done(result) if *result == 7));
        let seen = new(begin(&jobs, "orders", "ann")).carry_out_whole(until_stopped);
        assert!(matches!(ended(seen).await, End::Done(result) if *result == 7), "after half an hour");
        let page = CancellationToken::new();
        let begun = jobs.begin("orders", "ann", Uuid::now_v7(), page.child_token());
        let seen = new(begun).carry_out_whole(until_stopped);
        page.cancel();
        assert!(matches!(ended(seen).await, End::Done(result) if *result == 7), "at the end of the page");
    }

    /// Goal: a page that ends leaves no work that sends messages in the middle. Oracle: the work
    /// has noted its end when the wait for the jobs is over.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_page_waits_for_its_jobs() {
        let jobs = Jobs::new();
        let page = CancellationToken::new();
        assert!(jobs.about_to_stop("a replay").is_empty());
        let orders = new(jobs.begin("orders", "ann", Uuid::now_v7(), page.child_token()));
        orders.carry_out_whole(|stop: CancellationToken| async move {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(7)
        });
        let bills = new(jobs.begin("bills", "bob", Uuid::now_v7(), page.child_token()));
        bills.carry_out(std::future::pending());
        let running = jobs.about_to_stop("a replay");
        assert_eq!(running.len(), 2);
        page.cancel();
        all_ended(running).await;
        assert!(matches!(jobs.last("orders").unwrap().job.end, End::Done(result) if *result == 7));
        assert!(matches!(jobs.last("bills").unwrap().job.end, End::Failed(why) if why == "it was stopped"));
    }

    /// Goal: a form that is sent twice is one job. Oracle: the job that the second one gets, while
    /// the first one runs and after its end.
    #[tokio::test]
    async fn a_job_that_is_begun_twice_is_one_job() {
        let jobs = Jobs::new();
        let id = Uuid::now_v7();
        assert!(!jobs.has_begun("orders", id));
        let orders = new(jobs.begin("orders", "ann", id, CancellationToken::new()));
        assert!(jobs.has_begun("orders", id) && !jobs.has_begun("bills", id));
        let Begun::Before(again) = jobs.begin("orders", "ann", id, CancellationToken::new()) else {
            panic!("it begins again")
        };
        ended(orders.carry_out(async { Ok(7) })).await;
        assert!(matches!(ended(again).await, End::Done(result) if *result == 7));
        assert!(
            matches!(jobs.begin("orders", "ann", id, CancellationToken::new()), Begun::Before(_)),
            "it has ended"
        );
        new(begin(&jobs, "orders", "ann"));
    }

    #[test]
    fn progress_is_told() {
        let told = Arc::<Told>::default();
        let telling = Telling(Arc::clone(&told));
        telling.rows("outbox", 500);
        telling.rows("outbox", 7);
        assert_eq!((told.what().as_str(), told.rows()), ("outbox", 507));
        telling.waiting(3, Duration::from_secs(30));
        assert_eq!(told.what(), "3 messages may still be in flight: waiting 30s for each to arrive");
    }
}
