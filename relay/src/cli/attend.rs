//! Keeps one pipeline of the daemon running. A fault that ends it does not end the others.

use std::time::Duration;

use message::Backoff;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

use super::exit::Exit;
use engine::Pipeline;

/// Pauses after a fault of this program: the next run may meet the same row.
const RESTARTS: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// A run of at least this length shows that the previous fault does not recur at every start.
const WELL_AFTER: Duration = Duration::from_secs(600);

/// Runs a pipeline until it is asked to stop. A bug of this program ends a run, and another run
/// follows unless `is_once` is set. Returns [`Exit::Broken`] after such a fault, unless a run of
/// ten minutes followed. Not cancel-safe, like [`Pipeline::run`].
pub(crate) async fn attend(pipeline: Pipeline, name: &str, stop: CancellationToken, is_once: bool) -> Exit {
    let run = || pipeline.clone().run(stop.clone());
    let report = |fault| pipeline.report_faults(fault);
    keep_running(name, run, report, &stop, is_once).await
}

async fn keep_running<F>(
    name: &str,
    run: impl Fn() -> F,
    report: impl Fn(Option<(u32, String)>),
    stop: &CancellationToken,
    is_once: bool,
) -> Exit
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut faults = 0;
    loop {
        let begun = Instant::now();
        // A separate task confines a panic.
        let mut running = AbortOnDropHandle::new(tokio::spawn(run()));
        let ended = tokio::select! {
            biased;
            ended = &mut running => ended,
            () = tokio::time::sleep(WELL_AFTER) => {
                if faults > 0 {
                    report(None);
                }
                running.await
            }
        };
        let Err(fault) = ended else {
            let is_well = faults == 0 || begun.elapsed() > WELL_AFTER;
            return if is_well { Exit::Success } else { Exit::Broken };
        };
        // After a long run the faults, and with them the pauses, are counted from one again.
        faults = if begun.elapsed() > WELL_AFTER { 1 } else { faults + 1 };
        let pause = RESTARTS.delay(faults, rand::random());
        let reason = format!("an internal error ended the pipeline: {fault}");
        if is_once {
            error!(relay = name, "{reason}");
            stop.cancel();
        } else {
            error!(relay = name, "{reason}; the pipeline restarts in {pause:.1?}, other pipelines continue");
            report(Some((faults, reason)));
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Exit::Broken;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Runs a pipeline that panics `faults` times, and then runs until it is stopped. Returns the
    /// exit code, the number of runs and the reports.
    async fn ran(faults: u32, is_once: bool) -> (Exit, u32, Vec<u32>) {
        let (runs, reports) = (Arc::new(AtomicU32::new(0)), Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let run = || {
            let (number, stop) = (runs.fetch_add(1, Ordering::Relaxed), stop.clone());
            async move {
                assert!(number >= faults, "run {number}");
                // A healthy run, then the stop.
                tokio::time::sleep(WELL_AFTER * 2).await;
                stop.cancel();
            }
        };
        let report = |fault: Option<(u32, String)>| {
            reports.lock().unwrap().push(fault.map_or(0, |(faults, _)| faults));
        };
        let exit = keep_running("orders", run, report, &stop, is_once).await;
        (exit, runs.load(Ordering::Relaxed), reports.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_of_the_program_is_followed_by_another_run() {
        assert_eq!(ran(0, false).await, (Exit::Success, 1, Vec::new()));
        let (exit, runs, reports) = ran(3, false).await;
        assert_eq!((exit, runs), (Exit::Success, 4));
        assert_eq!(reports, [1, 2, 3, 0], "it is said to be well only once it has run for long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_ends_by_itself_is_not_repeated_after_a_fault() {
        assert_eq!(ran(1, true).await, (Exit::Broken, 1, Vec::new()));
    }
}
