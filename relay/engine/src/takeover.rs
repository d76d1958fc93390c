//! Loads the state that a new holder of the lease needs before it leads, and keeps the lease
//! meanwhile.
//!
//! Loading takes longer the more there is to load and the slower the database is. Without renewals
//! in between, it could take longer than a lease: then every process that took over would lose it
//! again, and nothing would ever be published.

use std::time::Duration;

use outbox_log::{CheckpointStore, EntryId, Fenced, Lease, LogError, LogReader, QueueName};
use tokio::time::Instant;

use crate::blocks::Blocks;
use crate::paused::Paused;
use crate::settings::DeadPolicy;

/// Maximum queues in one call, few enough to be quick compared with any lease.
const PAGE: usize = 2_000;
/// Maximum retrying and dead exceptions that one call looks at. It is longer than a page, because
/// those that block nothing are not fetched.
const WALK: usize = 10_000;

/// The phase between taking the lease and leading.
pub(crate) struct Takeover {
    checkpointer: Box<dyn CheckpointStore>,
    lease: Lease,
    /// When the lease or its last renewal was requested.
    asked_at: Instant,
    renew_interval: Duration,
}

impl Takeover {
    pub(crate) fn new(
        checkpointer: Box<dyn CheckpointStore>,
        lease: Lease,
        asked_at: Instant,
        renew_interval: Duration,
    ) -> Self {
        Self { checkpointer, lease, asked_at, renew_interval }
    }

    /// Loads everything parked or paused that blocks something. Returns `None` when the lease is
    /// lost. For held entries, only their queues are loaded.
    pub(crate) async fn blocks(
        &mut self,
        reader: &mut dyn LogReader,
        on_dead: DeadPolicy,
    ) -> Result<Option<Blocks>, LogError> {
        let mut blocks = Blocks::default();
        blocks.set_paused(Paused::of(reader.paused_scopes().await?));
        let mut next = Some(EntryId(0));
        while let Some(after) = next {
            let page = reader.stuck(after, WALK, on_dead == DeadPolicy::Hold).await?;
            page.exceptions.iter().for_each(|summary| blocks.load(summary, on_dead));
            if self.renew().await? == Fenced::Lost {
                return Ok(None);
            }
            next = page.next;
        }
        let mut after: Option<QueueName> = None;
        loop {
            let page = reader.held_queues(after.as_ref(), PAGE).await?;
            page.queues.iter().for_each(|queue| blocks.load_queue(queue));
            if self.renew().await? == Fenced::Lost {
                return Ok(None);
            }
            match page.queues.into_iter().next_back() {
                Some(last) if !page.exhausted => after = Some(last.name),
                _ => return Ok(Some(blocks)),
            }
        }
    }

    /// Returns the checkpointer, and when its lease was requested; `None` when the lease is lost.
    pub(crate) async fn end(mut self) -> Result<Option<(Box<dyn CheckpointStore>, Instant)>, LogError> {
        Ok((self.renew().await? == Fenced::Held).then_some((self.checkpointer, self.asked_at)))
    }

    /// Renews the lease when a renewal is due.
    async fn renew(&mut self) -> Result<Fenced, LogError> {
        let asked_at = Instant::now();
        if asked_at.duration_since(self.asked_at) < self.renew_interval {
            return Ok(Fenced::Held);
        }
        let fenced = self.checkpointer.renew(self.lease.epoch, self.lease.ttl).await?;
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
    use outbox_log::testing::{LogScript, ScriptedLog};
    use outbox_log::{ExceptionState, ExceptionSummary, HeldQueue, HeldQueues, StuckPage};

    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    /// A lease that expires.
    struct Expiring(Mutex<Instant>);

    #[async_trait]
    impl LogScript for Expiring {
        async fn renew(&self, _: i64, ttl: Duration) -> Result<Fenced, LogError> {
            let mut expires_at = self.0.lock().unwrap();
            if Instant::now() >= *expires_at {
                return Ok(Fenced::Lost);
            }
            *expires_at = Instant::now() + ttl;
            Ok(Fenced::Held)
        }
    }

    /// A database that needs a second for each page.
    struct Slow {
        /// Dead entries, each with a key of its own.
        stuck: i64,
        queues: i64,
    }

    fn name(number: i64) -> QueueName {
        QueueName::of("orders", Some(&format!("{number:09}")))
    }

    #[async_trait]
    impl LogScript for Slow {
        async fn held_queues(&self, after: Option<&QueueName>, max: usize) -> Result<HeldQueues, LogError> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let behind = (1..=self.queues).filter(|number| after.is_none_or(|after| name(*number) > *after));
            let queue = |number| HeldQueue { name: name(number), first: EntryId(1), topic: "orders".into() };
            let queues: Vec<_> = behind.take(max).map(queue).collect();
            Ok(HeldQueues { exhausted: queues.len() < max, queues })
        }

        async fn stuck(&self, after: EntryId, max: usize, dead_blocks: bool) -> Result<StuckPage, LogError> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let summary = |id| ExceptionSummary {
                id: EntryId(id),
                key: Some(format!("{id}")),
                state: ExceptionState::Dead,
            };
            let walked: Vec<i64> = (after.0 + 1..=self.stuck).take(max).collect();
            let next = walked.last().filter(|_| walked.len() == max).map(|last| EntryId(*last));
            let blocking = walked.into_iter().filter(|_| dead_blocks);
            Ok(StuckPage { exceptions: blocking.map(summary).collect(), next })
        }
    }

    fn slow(stuck: i64, queues: i64) -> ScriptedLog<Slow> {
        ScriptedLog(Arc::new(Slow { stuck, queues }))
    }

    fn takeover(left: Duration) -> (Takeover, Arc<Expiring>) {
        let lease = Arc::new(Expiring(Mutex::new(Instant::now() + left)));
        let checkpointer = Box::new(ScriptedLog(Arc::clone(&lease)));
        (Takeover::new(checkpointer, Lease { epoch: 1, ttl: TTL }, Instant::now(), TTL / 3), lease)
    }

    #[tokio::test(start_paused = true)]
    async fn loading_may_take_many_times_as_long_as_a_lease() {
        let (stuck, queues) = (10 * WALK as i64 + 1, 12 * PAGE as i64 + 1);
        let (mut takeover, lease) = takeover(TTL);
        let begun = Instant::now();
        let blocks = takeover.blocks(&mut slow(stuck, queues), DeadPolicy::Hold).await.unwrap().unwrap();
        assert!(begun.elapsed() > 6 * TTL);
        assert_eq!(blocks.keys_len(), usize::try_from(stuck).unwrap());
        assert_eq!(blocks.held.len(), usize::try_from(queues).unwrap());
        let (_, asked_at) = takeover.end().await.unwrap().unwrap();
        assert!(asked_at.elapsed() < TTL / 3 + Duration::from_secs(1));
        assert!(Instant::now() < *lease.0.lock().unwrap());
    }

    /// Goal: with the policy `pass`, dead entries are walked to their end, and none is loaded.
    /// Oracle: the keys that wait, and the time of eleven answers.
    #[tokio::test(start_paused = true)]
    async fn dead_entries_that_block_nothing_are_not_loaded() {
        let (mut takeover, _) = takeover(TTL);
        let begun = Instant::now();
        let mut log = slow(10 * WALK as i64 + 1, 0);
        let blocks = takeover.blocks(&mut log, DeadPolicy::Pass).await.unwrap().unwrap();
        assert!(blocks.is_empty());
        // The last answer is the one about held queues.
        assert_eq!(begun.elapsed().as_secs(), 11 + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_lost_meanwhile_ends_it() {
        let (mut takeover, _) = takeover(Duration::from_millis(500));
        let blocks = takeover.blocks(&mut slow(5, 5), DeadPolicy::Hold).await;
        assert!(blocks.unwrap().is_none());
    }
}
