//! A group for one test, its members, and the topic they read.

use std::collections::{BTreeMap, BTreeSet};

use brokers::kafka::{Admin, Config, Connector, GroupConfig, ReadStatus, Start, Subscriber, TopicPlan};
use message::{Message, MessageId, Subscription};
use tests::brokers::{create_kafka_topic, patient_kafka};
use tests::eventually::when;
use tests::{Backend, Failure, Outcome, Stage, eventually};

use conformance::consuming::{BATCH, WAIT, ids, settle, within};
use conformance::{relaying, sample};

/// How many messages a member prefetches: far fewer than there are.
pub(crate) const PREFETCH: usize = 20;
/// Enough keys that every partition gets some.
const KEYS: usize = 40;

/// A topic and the group that reads it.
pub(crate) struct Group {
    pub(crate) config: Config,
    pub(crate) name: String,
    pub(crate) topic: String,
}

impl Group {
    /// Creates a topic with this many partitions, and a group.
    pub(crate) async fn open(stage: &Stage, partitions: u16) -> Result<Self, Failure> {
        Self::of(stage, "orders", partitions).await
    }

    /// Does the same as [`open`](Self::open), for another topic.
    pub(crate) async fn of(stage: &Stage, topic: &str, partitions: u16) -> Result<Self, Failure> {
        Self::called(stage, &stage.unique(topic), partitions).await
    }

    /// Does the same as [`open`](Self::open), for a topic of exactly this name.
    pub(crate) async fn called(stage: &Stage, topic: &str, partitions: u16) -> Result<Self, Failure> {
        let config = patient_kafka(&Backend::Kafka.address()?)
            .property("heartbeat.interval.ms", "200")
            .property("topic.metadata.refresh.interval.ms", "3000");
        let topic = topic.to_owned();
        create_kafka_topic(stage, &config, TopicPlan::new(&topic, partitions)).await?;
        let group = Self { config, name: stage.unique("group"), topic };
        group.until_it_has(usize::from(partitions)).await?;
        Ok(group)
    }

    /// Waits until the cluster reports this many partitions.
    pub(crate) async fn until_it_has(&self, partitions: usize) -> Outcome {
        let admin = Admin::new(&self.config)?;
        eventually("the partitions are listed", || async {
            Ok(when(admin.topics().await?.contains(&(self.topic.clone(), partitions))))
        })
        .await
    }

    /// Publishes `rounds` messages of each key. Returns their ids.
    pub(crate) async fn publish(&self, rounds: i64) -> Result<BTreeSet<MessageId>, Failure> {
        let messages: Vec<Message> = sample::orders(&self.topic, KEYS, rounds)?;
        let sent = relaying::send(&Connector::new(self.config.clone())?, &messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        Ok(messages.iter().map(|message| message.id).collect())
    }

    /// Returns the offset that the group has committed in each partition.
    pub(crate) async fn committed(&self) -> Result<BTreeMap<i32, i64>, Failure> {
        let (config, name, topic) = (self.config.clone(), self.name.clone(), self.topic.clone());
        let found = tokio::task::spawn_blocking(move || {
            let found = brokers::kafka::committed(&config, &name, [topic.as_str()])?.remove(&topic);
            Ok::<_, Failure>(found.unwrap_or_default())
        });
        found.await?
    }

    /// Adds a new member.
    pub(crate) async fn join(&self, start: Start) -> Result<Member, Failure> {
        let mut group = GroupConfig::new(&self.name, [&self.topic]);
        (group.start, group.prefetch_len, group.session_timeout_ms) = (start, PREFETCH, 6_000);
        let subscriber = Subscriber::new(self.config.clone(), group)?;
        let subscription = subscriber.subscribe().await?;
        Ok(Member { subscriber, subscription })
    }
}

/// A member of the group.
pub(crate) struct Member {
    pub(crate) subscriber: Subscriber,
    pub(crate) subscription: Box<dyn Subscription>,
}

impl Member {
    pub(crate) fn status(&self) -> ReadStatus {
        self.subscriber.status().unwrap_or_default()
    }

    /// Waits until the status satisfies the condition.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&ReadStatus) -> bool) -> Outcome {
        let waited = eventually(what, || async { Ok(when(is(&self.status()))) }).await;
        waited.map_err(|failure| format!("{failure}; {:?}", self.status()).into())
    }

    /// Receives and settles messages until all of these are handled. Returns the ids of all handled
    /// messages.
    pub(crate) async fn handle(
        &mut self,
        wanted: &BTreeSet<MessageId>,
    ) -> Result<BTreeSet<MessageId>, Failure> {
        let mut handled = BTreeSet::new();
        let outcome = within("everything is handled", async {
            while !handled.is_superset(wanted) {
                let deliveries = self.subscription.receive(BATCH, WAIT).await?;
                settle(&mut self.subscription, &deliveries).await?;
                handled.extend(ids(&deliveries));
            }
            Ok(())
        });
        match outcome.await {
            Ok(()) => Ok(handled),
            Err(failure) => {
                let missing = wanted.difference(&handled).count();
                Err(format!("{failure}; {missing} of {} are missing; {:?}", wanted.len(), self.status())
                    .into())
            }
        }
    }

    pub(crate) async fn close(self) -> Outcome {
        Ok(self.subscription.close().await?)
    }
}
