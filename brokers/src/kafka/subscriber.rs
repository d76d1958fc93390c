//! Opens subscriptions.

use std::collections::HashSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use message::SubscriptionError;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::beginning::begin_at_the_end;
use super::callbacks::Callbacks;
use super::commits::Commits;
use super::config::Config;
use super::fault;
use super::fixed;
use super::group::{GroupConfig, Partition, Start};
use super::inflow::Inflow;
use super::ledger::Place;
use super::login::Login;
use super::offsets;
use super::pump::{Command, EndOfDelivery, Pump};
use super::status::ReadStatus;
use super::subscription::Subscription;
use crate::settings::InvalidSetting;

/// Subscribes to a Kafka cluster, as often as needed: once at the start and again after every loss.
#[derive(Debug, Clone)]
pub struct Subscriber {
    config: Config,
    group: GroupConfig,
    /// The inflow of the latest subscription.
    latest: Arc<Mutex<Weak<Inflow>>>,
    /// The topics whose start position was decided: at their ends, or at the first message of a
    /// topic that did not exist.
    begun: Arc<Mutex<HashSet<String>>>,
}

impl Subscriber {
    /// Creates a subscriber for this cluster and group. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] as for [`Config::check`] and [`GroupConfig::check`].
    pub fn new(config: Config, group: GroupConfig) -> Result<Self, InvalidSetting> {
        config.check()?;
        group.check()?;
        config.warn();
        Ok(Self { config, group, latest: Arc::default(), begun: Arc::default() })
    }

    /// Returns the status of the latest subscription of this subscriber and all its clones; `None`
    /// when it has ended.
    #[must_use]
    pub fn status(&self) -> Option<ReadStatus> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        latest.map(|inflow| inflow.status())
    }

    /// Joins the group and starts to fetch. Returns when the cluster has answered; the group's
    /// first assignment can take some seconds more, during which nothing is received.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the cluster is unreachable (the broker's fault), or settings or
    /// credentials are wrong (the operator's). Cancel-safe: a dropped attempt leaves the group.
    pub async fn subscribe(&self) -> Result<Box<dyn message::Subscription>, SubscriptionError> {
        let inflow = Arc::new(Inflow::new(self.group.prefetch_len, self.group.all_topics()));
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&inflow);
        let (sender, commands) = channel();
        let (opened, opening) = oneshot::channel();
        let (me, shared, waker) = (self.clone(), Arc::clone(&inflow), sender.clone());
        let runtime = Handle::try_current().ok();
        thread::Builder::new()
            .name(String::from("kafka-consumer"))
            .spawn(move || match me.open(shared, waker, runtime) {
                Ok(pump) => {
                    // If the attempt was dropped, so is the consumer, which leaves the group at
                    // once.
                    if opened.send(Ok(())).is_ok() {
                        pump.run(&commands);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            })
            .map_err(|error| SubscriptionError::lost("no thread for kafka").with_source(error))?;
        match opening.await {
            Ok(Ok(())) => {
                let subscription = Subscription::new(inflow, sender, self.group.origin());
                Ok(Box::new(subscription.of_group(self.fixed().is_empty())))
            }
            Ok(Err(error)) => Err(error),
            Err(error) => {
                Err(SubscriptionError::lost("subscribing to kafka was interrupted").with_source(error))
            }
        }
    }

    /// Creates the consumer. Blocks: it reads secrets and certificates, and waits for a token and
    /// for the cluster's first answer.
    fn open(
        &self,
        inflow: Arc<Inflow>,
        waker: Sender<Command>,
        runtime: Option<Handle>,
    ) -> Result<Pump, SubscriptionError> {
        let mut client = self
            .group
            .consumer(&self.config)
            .map_err(|error| SubscriptionError::operator(error.to_string()).with_source(error))?;
        let fixed = self.fixed();
        let group_of_fixed = (!fixed.is_empty()).then(|| self.group.group.clone());
        let login = Login::of(&self.config, runtime)?;
        let callbacks = Callbacks::new(Arc::clone(&inflow), &self.config, &mut client, group_of_fixed);
        let mut consumer = BaseConsumer::from_config_and_context(&client, callbacks)
            .map_err(|error| SubscriptionError::operator(fault::creation(&error)))?;
        login.give(consumer.client())?;
        consumer.set_nonempty_callback(move || {
            // An error means that the subscription has ended, and nothing needs to wake up.
            let _ = waker.send(Command::Wake);
        });
        let (origin, timeout) = (self.group.origin(), self.config.connect_timeout());
        let commits = if fixed.is_empty() { Commits::default() } else { Commits::kept(Instant::now()) };
        let end = EndOfDelivery(Arc::clone(&inflow));
        let mut pump = Pump { _end: end, consumer, inflow, origin, commits, login };
        pump.reach(timeout)?;
        for topic in self.group.all_topics() {
            pump.learn(topic, timeout).map_err(|error| {
                let text = format!("{}: the cluster does not describe topic {topic:?}: {error}", pump.origin);
                SubscriptionError::lost(text).with_source(error)
            })?;
        }
        if self.group.start == Start::Latest {
            self.begin(&pump.consumer, &pump.origin)?;
        }
        let begins = offsets::correct(&pump.consumer, &pump.inflow, &fixed, timeout)?;
        if !fixed.is_empty() {
            fixed::claim(&pump.consumer, &pump.inflow, &begins, &self.group.group)?;
        }
        pump.inflow.lock().ledger.begin(begins);
        self.start(&pump, fixed).map_err(|error| {
            let text = format!("{}: cannot subscribe: {error}", pump.origin);
            SubscriptionError::operator(text).with_source(error)
        })?;
        Ok(pump)
    }

    /// Begins at the ends of topics that are new to the group; decides this once for each topic.
    fn begin(&self, consumer: &BaseConsumer<Callbacks>, origin: &str) -> Result<(), SubscriptionError> {
        let mut topics = self.group.all_topics();
        let begun = || self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        topics.retain(|topic| !begun().contains(*topic));
        if !topics.is_empty() {
            begin_at_the_end(consumer, &topics, origin, self.config.connect_timeout())?;
            begun().extend(topics.into_iter().map(str::to_owned));
        }
        Ok(())
    }

    /// Returns the fixed partitions.
    fn fixed(&self) -> Vec<Place> {
        let place = |fixed: &Partition| (Arc::from(&*fixed.topic), i32::from(fixed.partition));
        self.group.partitions.iter().map(place).collect()
    }

    fn start(&self, pump: &Pump, fixed: Vec<Place>) -> Result<(), KafkaError> {
        if fixed.is_empty() {
            let topics: Vec<&str> = self.group.topics.iter().map(String::as_str).collect();
            return pump.consumer.subscribe(&topics);
        }
        let mut list = TopicPartitionList::with_capacity(fixed.len());
        for (topic, partition) in &fixed {
            list.add_partition_offset(topic, *partition, Offset::Stored)?;
        }
        // No rebalance reports them.
        pump.inflow.lock().assign(fixed);
        pump.consumer.assign(&list)
    }
}

#[async_trait::async_trait]
impl message::Subscriber for Subscriber {
    async fn subscribe(&self) -> Result<Box<dyn message::Subscription>, SubscriptionError> {
        Self::subscribe(self).await
    }
}
