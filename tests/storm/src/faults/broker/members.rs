//! Kafka: another member joins a consumer group and leaves it, again and again, so that partitions
//! move under load.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::task::spawn_blocking;

use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, millis, seconds};
use crate::stage::Stage;

/// A guest in one of the groups. It reads its partitions and commits nothing, so the next owner of
/// a partition reads the same messages again.
#[derive(Debug, Default)]
pub struct GroupRebalances {
    guest: Option<Guest>,
}

#[derive(Debug)]
struct Guest {
    leaving: Arc<AtomicBool>,
    joined: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Duration of a visit, and of the pause after it.
const STAY: RangeInclusive<Duration> = millis(500)..=millis(5_000);
const AWAY: RangeInclusive<Duration> = millis(100)..=millis(1_500);
const POLL: Duration = millis(50);

#[async_trait]
impl Fault<Stage> for GroupRebalances {
    fn kind(&self) -> FaultKind {
        FaultKind::new("group-rebalances").weight(20).lasts(seconds(4)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let group = stage.broker.groups.choose(rng).ok_or("there is no group")?.clone();
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &stage.broker.address)
            .set("group.id", &group)
            .set("enable.auto.commit", "false")
            .set("session.timeout.ms", "6000")
            // The toolkit's own members use the same strategy, because a group has only one.
            .set("partition.assignment.strategy", "cooperative-sticky");
        let (leaving, joined) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let visits = Visits {
            config,
            topic: topic.clone(),
            leaving: Arc::clone(&leaving),
            joined: Arc::clone(&joined),
        };
        let rng = StdRng::seed_from_u64(rng.random());
        let thread = std::thread::spawn(move || visits.go_on(rng));
        self.guest = Some(Guest { leaving, joined, thread });
        Ok(Injected::new(format!("group {group}"), "a member comes and goes"))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(guest) = self.guest.take() {
            guest.leaving.store(true, Relaxed);
            let joined = spawn_blocking(move || guest.thread.join()).await?;
            joined.map_err(|_| "the guest of the group panicked")?;
        }
        Ok(())
    }
}

impl GroupRebalances {
    /// Returns how often the current guest was assigned partitions.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.guest.as_ref().map_or(0, |guest| guest.joined.load(Relaxed))
    }
}

struct Visits {
    config: ClientConfig,
    topic: String,
    leaving: Arc<AtomicBool>,
    joined: Arc<AtomicU64>,
}

impl Visits {
    fn go_on(&self, mut rng: StdRng) {
        while !self.leaving.load(Relaxed) {
            // After an outage the next visit works again.
            let _ = self.visit(rng.random_range(STAY));
            let back_at = Instant::now() + rng.random_range(AWAY);
            while Instant::now() < back_at && !self.leaving.load(Relaxed) {
                std::thread::sleep(POLL);
            }
        }
    }

    fn visit(&self, stay: Duration) -> Result<(), Failure> {
        let member: BaseConsumer = self.config.create()?;
        member.subscribe(&[&self.topic])?;
        let mut until = Instant::now() + stay;
        let mut is_counted = false;
        while Instant::now() < until && !self.leaving.load(Relaxed) {
            let _ = member.poll(POLL);
            if !is_counted && member.assignment()?.count() > 0 {
                is_counted = true;
                self.joined.fetch_add(1, Relaxed);
                // Joining takes time, so the stay begins once partitions are assigned.
                until = Instant::now() + stay;
            }
        }
        Ok(())
    }
}
