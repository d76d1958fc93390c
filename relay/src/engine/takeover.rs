//! What a new holder of the lease has to know before it leads, and the lease kept meanwhile.
//!
//! Loading takes as long as there is something to load and as the database is slow. Without renewals in between it could
//! take longer than a lease: then every process that took over would lose it again, and nothing would ever be published.

use std::time::Duration;

use outbox::log::{EntryId, ExceptionSummary, Fenced, Lease, LogError, LogKeeper};
use tokio::time::Instant;

/// Exceptions of one call: short against any lease.
const PAGE: usize = 2_000;

/// Between taking the lease and leading.
pub(crate) struct Takeover {
    keeper: Box<dyn LogKeeper>,
    lease: Lease,
    /// When the lease or its last renewal was asked for.
    asked_at: Instant,
    renew_interval: Duration,
}

impl Takeover {
    pub(crate) fn new(
        keeper: Box<dyn LogKeeper>,
        lease: Lease,
        asked_at: Instant,
        renew_interval: Duration,
    ) -> Self {
        Self { keeper, lease, asked_at, renew_interval }
    }

    /// Everything beside the log that blocks something; nothing when the lease is lost.
    pub(crate) async fn blocking(&mut self) -> Result<Option<Vec<ExceptionSummary>>, LogError> {
        let mut all: Vec<ExceptionSummary> = Vec::new();
        loop {
            let after = all.last().map_or(EntryId(0), |last| last.id);
            let page = self.keeper.blocking(after, PAGE).await?;
            let is_last = page.len() < PAGE;
            all.extend(page);
            if self.renew().await? == Fenced::Lost {
                return Ok(None);
            }
            if is_last {
                return Ok(Some(all));
            }
        }
    }

    /// The keeper, and when the lease that it keeps was asked for; nothing when it is lost.
    pub(crate) async fn end(mut self) -> Result<Option<(Box<dyn LogKeeper>, Instant)>, LogError> {
        Ok((self.renew().await? == Fenced::Held).then_some((self.keeper, self.asked_at)))
    }

    /// Prolongs the lease when it is time to.
    async fn renew(&mut self) -> Result<Fenced, LogError> {
        let asked_at = Instant::now();
        if asked_at.duration_since(self.asked_at) < self.renew_interval {
            return Ok(Fenced::Held);
        }
        let fenced = self.keeper.renew(self.lease.epoch, self.lease.ttl).await?;
        if fenced == Fenced::Held {
            self.asked_at = asked_at;
        }
        Ok(fenced)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use outbox::log::{Acquired, Cursor, ExceptionChange, ExceptionState};

    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    /// A database that needs a second for each page, and holds a lease that expires.
    struct Slow {
        exceptions: i64,
        expires_at: Arc<Mutex<Instant>>,
    }

    #[async_trait]
    impl LogKeeper for Slow {
        async fn acquire(&mut self, _: Duration) -> Result<Acquired, LogError> {
            unreachable!("taken before")
        }

        async fn renew(&mut self, _: i64, ttl: Duration) -> Result<Fenced, LogError> {
            let mut expires_at = self.expires_at.lock().unwrap();
            if Instant::now() >= *expires_at {
                return Ok(Fenced::Lost);
            }
            *expires_at = Instant::now() + ttl;
            Ok(Fenced::Held)
        }

        async fn checkpoint(
            &mut self,
            _: i64,
            _: &Cursor,
            _: &[ExceptionChange],
        ) -> Result<Fenced, LogError> {
            unreachable!("not while taking over")
        }

        async fn release(&mut self, _: i64) -> Result<Fenced, LogError> {
            unreachable!("not while taking over")
        }

        async fn blocking(
            &mut self,
            after: EntryId,
            entries_max: usize,
        ) -> Result<Vec<ExceptionSummary>, LogError> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ids = (after.0 + 1..=self.exceptions).take(entries_max);
            Ok(ids
                .map(|id| ExceptionSummary { id: EntryId(id), key: None, state: ExceptionState::Held })
                .collect())
        }

        async fn next_due_in(&mut self) -> Result<Option<Duration>, LogError> {
            unreachable!("not while taking over")
        }
    }

    fn takeover(exceptions: i64, left: Duration) -> (Takeover, Arc<Mutex<Instant>>) {
        let expires_at = Arc::new(Mutex::new(Instant::now() + left));
        let keeper = Box::new(Slow { exceptions, expires_at: Arc::clone(&expires_at) });
        (Takeover::new(keeper, Lease { epoch: 1, ttl: TTL }, Instant::now(), TTL / 3), expires_at)
    }

    #[tokio::test(start_paused = true)]
    async fn loading_may_take_many_times_as_long_as_a_lease() {
        let exceptions = 20 * PAGE as i64 + 1;
        let (mut takeover, expires_at) = takeover(exceptions, TTL);
        let begun = Instant::now();
        let loaded = takeover.blocking().await.unwrap().unwrap();
        assert!(begun.elapsed() > 6 * TTL);
        assert!(loaded.iter().map(|one| one.id.0).eq(1..=exceptions));
        let (_, asked_at) = takeover.end().await.unwrap().unwrap();
        assert!(asked_at.elapsed() < TTL / 3 + Duration::from_secs(1));
        assert!(Instant::now() < *expires_at.lock().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_lost_meanwhile_ends_it() {
        let (mut takeover, _) = takeover(5, Duration::from_millis(500));
        assert!(takeover.blocking().await.unwrap().is_none());
    }
}
