//! A pipeline that outlives its own bugs.

use std::time::Duration;

use message::{Backoff, Runtime};
use outbox_log::RelayName;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Pipeline;
use crate::telemetry;

/// Pauses after a fault of this program: the next run may meet the same row.
const RESTARTS: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// A run of at least this length shows that the previous fault does not recur at every start.
const WELL_AFTER: Duration = Duration::from_secs(600);

/// The treatment of a pipeline after a bug in this program has ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFault {
    /// Another run, after a pause of 1 s to a minute.
    Restart,
    /// The end.
    Stop,
}

/// How a pipeline that was kept running has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum KeptEnd {
    /// It was stopped, and had no fault, or has run for ten minutes since the last one.
    Well,
    /// A bug in this program has ended it, or has ended a run shortly before it was stopped.
    Faulty,
}

impl Pipeline {
    /// Runs until `stop` is cancelled, like [`run`](Self::run). A bug in this program, such as a
    /// panic, ends only a run: it is logged and counted, [`status`](Self::status) shows it, and
    /// `after` decides what follows. With [`AfterFault::Stop`], the bug also cancels `stop`.
    ///
    /// Not cancel-safe: dropping the future skips the orderly shutdown. Nothing is lost, but the
    /// lease has to expire.
    pub async fn keep_running(self, stop: CancellationToken, after: AfterFault) -> KeptEnd {
        let run = || self.clone().run(stop.clone());
        let report = |fault| self.report_faults(fault);
        keep_running(&Kept { name: &self.name, host: &self.host, stop: &stop, after }, run, report).await
    }
}

struct Kept<'a> {
    name: &'a RelayName,
    host: &'a Runtime,
    stop: &'a CancellationToken,
    after: AfterFault,
}

async fn keep_running<F>(
    kept: &Kept<'_>,
    run: impl Fn() -> F,
    report: impl Fn(Option<(u32, String)>),
) -> KeptEnd
where
    F: Future<Output = ()> + Send + 'static,
{
    let Kept { name, host, stop, after } = kept;
    let mut faults = 0;
    loop {
        let begun = Instant::now();
        // A separate task confines a panic.
        let mut running = AbortOnDropHandle::new(host.spawn(run()));
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
            return if is_well { KeptEnd::Well } else { KeptEnd::Faulty };
        };
        // After a long run the faults, and with them the pauses, are counted from one again.
        faults = if begun.elapsed() > WELL_AFTER { 1 } else { faults + 1 };
        let reason = format!("an internal error ended the pipeline: {fault}");
        if *after == AfterFault::Stop {
            telemetry::pipeline_ended(name, &reason);
            stop.cancel();
            return KeptEnd::Faulty;
        }
        let pause = RESTARTS.delay(faults, host.uniform());
        telemetry::pipeline_restarts(name, &reason, pause);
        report(Some((faults, reason)));
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return KeptEnd::Faulty;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Runs a pipeline that panics `faults` times, and then runs until it is stopped. Returns its
    /// end, the number of runs and the reports.
    async fn ran(faults: u32, after: AfterFault) -> (KeptEnd, u32, Vec<u32>) {
        let runs = Arc::new(AtomicU32::new(0));
        let reports = Mutex::new(Vec::new());
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
        let name = RelayName::new("orders").unwrap();
        let kept = Kept { name: &name, host: &Runtime::default(), stop: &stop, after };
        let end = keep_running(&kept, run, report).await;
        assert!(stop.is_cancelled());
        (end, runs.load(Ordering::Relaxed), reports.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_of_the_program_is_followed_by_another_run() {
        assert_eq!(ran(0, AfterFault::Restart).await, (KeptEnd::Well, 1, Vec::new()));
        let (end, runs, reports) = ran(3, AfterFault::Restart).await;
        assert_eq!((end, runs), (KeptEnd::Well, 4));
        assert_eq!(reports, [1, 2, 3, 0], "it is said to be well only once it has run for long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_ends_by_itself_is_not_repeated_after_a_fault() {
        assert_eq!(ran(1, AfterFault::Stop).await, (KeptEnd::Faulty, 1, Vec::new()));
    }
}
