//! Consumers under test. Each runs until the world ends; one that crashes is restarted, as a
//! supervisor would do.

use std::future::{Ready, ready};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brokers::memory::Broker;
use inbox::{
    Backoff, BuildError, Consumer, ConsumerBuilder, ConsumerName, CrashPoint, Handler, Inbox, Shutdown,
    Tenant,
};
use message::{Message, Subscription, SubscriptionError, Topic};
use sqlx::Sqlite;
use tokio::sync::watch;

use crate::database::Database;
use crate::failure::Failure;
use crate::recorded::Recorded;
use crate::world::{World, lock};

type TenantOf = Arc<dyn Fn(&Message) -> Tenant + Send + Sync>;
type Configure<DB> = Arc<dyn Fn(ConsumerBuilder<DB>) -> ConsumerBuilder<DB> + Send + Sync>;

/// Crashes of consumers on demand.
#[derive(Debug)]
pub(crate) struct Crash {
    /// The points at which the next consumers to reach them die.
    points: Mutex<Vec<CrashPoint>>,
    /// Counts the requests to end all consumers at once.
    all: watch::Sender<u64>,
}

impl Default for Crash {
    fn default() -> Self {
        Self { points: Mutex::default(), all: watch::Sender::new(0) }
    }
}

impl Crash {
    /// Panics if a consumer is to die at this point.
    fn reach(&self, point: CrashPoint) {
        let mut points = lock(&self.points);
        if let Some(at) = points.iter().position(|wanted| *wanted == point) {
            points.remove(at);
            drop(points);
            panic!("the testkit ends this consumer {point:?}");
        }
    }
}

/// The source of a consumer's deliveries: a topic in memory, read as a member of a group.
#[derive(Debug, Clone)]
pub struct Feed {
    broker: Broker,
    group: String,
    topic: Topic,
}

impl Feed {
    /// Opens a subscription.
    ///
    /// # Errors
    /// The broker is switched to unreachable.
    pub fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        Ok(Box::new(self.broker.subscribe(&self.group, [self.topic.clone()])?))
    }

    /// Returns a subscriber for [`ConsumerBuilder::subscribe`].
    pub fn subscriber(
        &self,
    ) -> impl Fn() -> Ready<Result<Box<dyn Subscription>, SubscriptionError>> + Clone + Send + Sync + 'static
    {
        let feed = self.clone();
        move || ready(feed.subscribe())
    }
}

/// A consumer that is not running yet, created by [`World::consumer`].
#[must_use = "it runs when it is started"]
pub struct Consuming<'w, DB: Database = Sqlite> {
    world: &'w World<DB>,
    name: String,
    topic: String,
    handler: Option<Arc<dyn Handler<DB>>>,
    tenant_of: TenantOf,
    copies: usize,
    configure: Configure<DB>,
}

impl<DB: Database> World<DB> {
    /// Creates a consumer with this handler. Its effects are recorded and checked.
    pub fn consumer(
        &self,
        name: &str,
        topic: &str,
        handler: impl Handler<DB> + 'static,
    ) -> Consuming<'_, DB> {
        Consuming { handler: Some(Arc::new(handler)), ..self.consumer_with(name, topic, |builder| builder) }
    }

    /// Creates a consumer from the builder that production uses: with its handlers of kinds (`on`,
    /// `on_batch`, `on_message`), its tenants and its other options. Its effects are recorded and
    /// checked.
    pub fn consumer_with(
        &self,
        name: &str,
        topic: &str,
        configure: impl Fn(ConsumerBuilder<DB>) -> ConsumerBuilder<DB> + Send + Sync + 'static,
    ) -> Consuming<'_, DB> {
        Consuming {
            world: self,
            name: name.to_owned(),
            topic: topic.to_owned(),
            handler: None,
            tenant_of: Arc::new(|_| Tenant::none()),
            copies: 1,
            configure: Arc::new(configure),
        }
    }

    /// Returns deliveries of a topic, shared among all readers that use this function.
    ///
    /// # Errors
    /// The name is not a valid topic name.
    pub fn feed(&self, topic: &str) -> Result<Feed, Failure> {
        self.feed_as("testkit", topic)
    }

    /// Returns all deliveries of a topic once more. A reader of this feed gets the same messages as
    /// other readers, at the same time.
    ///
    /// # Errors
    /// The name is not a valid topic name.
    pub fn feed_of_its_own(&self, topic: &str) -> Result<Feed, Failure> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        self.feed_as(&format!("testkit-{}", NUMBER.fetch_add(1, Ordering::Relaxed)), topic)
    }

    pub(crate) fn feed_as(&self, group: &str, topic: &str) -> Result<Feed, Failure> {
        let topic = Topic::new(topic).map_err(Failure::during("name the topic"))?;
        // From now on the world is not quiet until this group has settled its deliveries.
        self.broker.create_group(group, [topic.clone()]);
        Ok(Feed { broker: self.broker.clone(), group: group.to_owned(), topic })
    }

    /// Runs a consumer that the service under test builds itself, and rebuilds it after each crash.
    /// Its effects are checked once [`World::effects`] defines the query for them.
    ///
    /// # Errors
    /// The [`BuildError`] of the first build.
    pub fn run<F>(&self, make: F) -> Result<(), Failure>
    where
        F: Fn(Inbox<DB>) -> Result<Consumer<DB>, BuildError> + Send + Sync + 'static,
    {
        let first = make(self.inbox.clone()).map_err(Failure::during("build the consumer"))?;
        let mut all = self.crash.all.subscribe();
        let inbox = self.inbox.clone();
        lock(&self.tasks).spawn(async move {
            let mut next = Some(first);
            while let Some(consumer) = next {
                // Any end of the consumer counts as a crash, because the world ends by aborting
                // this task.
                tokio::select! {
                    _ = consumer.run(Shutdown::new()) => {}
                    _ = all.changed() => {}
                }
                next = make(inbox.clone()).ok();
            }
        });
        Ok(())
    }

    /// Makes the next consumer that reaches this point die there. The consumer is then restarted.
    /// Applies to consumers of [`World::consumer`]. Each call crashes one consumer.
    pub fn crash_at(&self, point: CrashPoint) {
        lock(&self.crash.points).push(point);
    }

    /// Returns the number of points from [`World::crash_at`] that no consumer has reached yet.
    #[must_use]
    pub fn crashes_left(&self) -> usize {
        lock(&self.crash.points).len()
    }

    /// Ends every consumer at any point of its work, and restarts it.
    pub fn crash_consumers(&self) {
        self.crash.all.send_modify(|count| *count += 1);
    }
}

impl<DB: Database> Consuming<'_, DB> {
    /// Runs this many consumers under the same name, each of which gets every message: concurrent
    /// duplicates.
    pub fn copies(mut self, copies: usize) -> Self {
        self.copies = copies;
        self
    }

    /// Sets the function that returns the tenant or account of a message. The default is no tenant.
    pub fn tenant(mut self, tenant_of: impl Fn(&Message) -> Tenant + Send + Sync + 'static) -> Self {
        self.tenant_of = Arc::new(tenant_of);
        self
    }

    /// Sets the runner's other options: batches, attempts, concurrency. A function for tenants that
    /// is set here replaces that of [`tenant`](Self::tenant). Replaces the function of
    /// [`World::consumer_with`].
    pub fn configure(
        mut self,
        configure: impl Fn(ConsumerBuilder<DB>) -> ConsumerBuilder<DB> + Send + Sync + 'static,
    ) -> Self {
        self.configure = Arc::new(configure);
        self
    }

    /// Starts the consumer.
    ///
    /// # Errors
    /// The name is not valid, or the runner refuses the configuration.
    pub fn start(self) -> Result<(), Failure> {
        let name = ConsumerName::new(self.name.as_str()).map_err(Failure::during("name the consumer"))?;
        lock(&self.world.watched).recorded.entry(self.name.clone()).or_default().insert(self.topic.clone());
        for copy in 0..self.copies {
            // Members of one group share the messages, so each copy is a group.
            let feed = self.world.feed_as(&format!("{}-{copy}", self.name), &self.topic)?;
            let (name, crash) = (name.clone(), Arc::clone(&self.world.crash));
            let (configure, tenant_of) = (Arc::clone(&self.configure), Arc::clone(&self.tenant_of));
            let (handler, consumer) = (self.handler.clone(), Arc::<str>::from(self.name.as_str()));
            self.world.run(move |inbox| {
                let (crash, tenant_of, consumer) =
                    (Arc::clone(&crash), Arc::clone(&tenant_of), Arc::clone(&consumer));
                let builder = Consumer::builder(inbox, name.clone())
                    .concurrency(NonZeroUsize::MIN)
                    .backoff(Backoff { first: Duration::from_millis(1), max: Duration::from_millis(20) })
                    .tenant(move |message| tenant_of(message));
                let mut builder = configure(builder).subscribe(feed.subscriber());
                if let Some(handler) = &handler {
                    builder = builder.shared_handler(Arc::clone(handler));
                }
                builder
                    .observed(move |handler| Arc::new(Recorded { consumer: Arc::clone(&consumer), handler }))
                    .crash_hook(move |point, _| crash.reach(point))
                    .build()
            })?;
        }
        Ok(())
    }
}

impl<DB: Database> std::fmt::Debug for Consuming<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consuming")
            .field("name", &self.name)
            .field("copies", &self.copies)
            .finish_non_exhaustive()
    }
}
