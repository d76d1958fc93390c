//! Renewal of a lease while its handler runs.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::{Claim, CompleteError, KeyStore};

/// Maximum time that the end of a request waits for the renewal under way.
const LAST_RENEWAL_MAX: Duration = Duration::from_secs(5);

/// A task that renews a lease. Dropping it stops the renewal under way as well, although the server
/// may still carry that out.
pub(super) struct Renewal {
    task: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

impl Renewal {
    /// Renews the lease every third of its length, and cancels `lost` when that fails.
    pub(super) fn start<DB: KeyStore>(claim: Claim<DB>, lost: CancellationToken) -> Self {
        let not_renewed = |claim: &Claim<DB>, error: &str, is_lost: bool| {
            tracing::warn!(
                %error, key = %claim.id(), holder = %claim.holder(), attempt = claim.attempt(), is_lost,
                "the lease of an idempotency key was not renewed"
            );
        };
        Self::spawn(async move |stop| {
            let renew = || claim.renew();
            let report = |error: &str, is_lost| not_renewed(&claim, error, is_lost);
            if renewing(claim.lease(), stop, renew, report).await == Ended::Lost {
                lost.cancel();
            }
        })
    }

    /// In a separate task: a handler that blocks its thread must not lose its lease because of
    /// that.
    fn spawn<F>(work: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(work(stop.clone())));
        Self { task, stop }
    }

    /// Ends the task after the renewal under way, so that the server carries out no part of it
    /// later. Waits at most a few seconds for that, then abandons it.
    pub(super) async fn finish(self) {
        self.stop.cancel();
        if tokio::time::timeout(LAST_RENEWAL_MAX, self.task).await.is_err() {
            tracing::debug!("the last renewal of the lease of an idempotency key was abandoned");
        }
    }
}

/// Why renewals ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// They were stopped on request.
    Stopped,
    /// The lease was lost.
    Lost,
}

/// Renews a lease until it is lost, or until `stop`, which never interrupts a renewal. Reports each
/// failure, and whether the lease was lost with it.
async fn renewing<F>(
    lease: Duration,
    stop: CancellationToken,
    renew: impl Fn() -> F,
    report: impl Fn(&str, bool),
) -> Ended
where
    F: Future<Output = Result<(), CompleteError>>,
{
    let mut until = Instant::now() + lease;
    while stop.run_until_cancelled(tokio::time::sleep(lease / 3)).await.is_some() {
        let asked_at = Instant::now();
        let error = match tokio::time::timeout_at(until, renew()).await {
            Ok(Ok(())) => {
                until = asked_at + lease;
                continue;
            }
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let is_lost = error.as_ref().is_none_or(CompleteError::is_late) || Instant::now() >= until;
        report(&error.as_ref().map(ToString::to_string).unwrap_or_default(), is_lost);
        if is_lost {
            return Ended::Lost;
        }
    }
    Ended::Stopped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    /// Starts renewals that take this long. Returns the number of those that ended.
    fn renewals_of(duration: Duration) -> (Renewal, Arc<AtomicUsize>) {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let renewal = Renewal::spawn(async move |stop| {
            let renew = async || {
                tokio::time::sleep(duration).await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            renewing(LEASE, stop, renew, |error, is_lost| panic!("{error} {is_lost}")).await;
        });
        (renewal, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn the_renewal_under_way_ends_before_the_lease_does() {
        let (renewal, ended) = renewals_of(Duration::from_secs(2));
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert_eq!(ended.load(Ordering::Relaxed), 0, "it is under way");
        let asked_at = Instant::now();
        renewal.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert_eq!(asked_at.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn between_two_renewals_nothing_is_waited_for() {
        let (renewal, ended) = renewals_of(Duration::from_secs(2));
        tokio::time::sleep(Duration::from_secs(30)).await;
        let asked_at = Instant::now();
        renewal.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert_eq!(asked_at.elapsed().as_secs(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_database_delays_the_answer_by_seconds_only() {
        let (renewal, ended) = renewals_of(LEASE);
        tokio::time::sleep(Duration::from_secs(21)).await;
        let asked_at = Instant::now();
        renewal.finish().await;
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        assert_eq!(asked_at.elapsed(), LAST_RENEWAL_MAX);
    }
}
