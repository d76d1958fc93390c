//! A relay inside a service.

use std::sync::Arc;
use std::time::Duration;

use engine::maintenance::{self, Maintenance};
use engine::telemetry::History;
use engine::{AfterFault, EngineOptions, Filter, InvalidSetting, Pipeline, Publishing};
use message::{Connector, SizeLimit, Source, Transactions};
use outbox::Outbox;
use outbox_log::Address;
use outbox_log::retention::{KEEP_MESSAGES, KeepOutOfBounds};
use outbox_log::{LogError, LogOptions, RelayName};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::RelayHealth;
use crate::relay_health::Entered;

/// A relay inside a service: reads one outbox, publishes to one broker, and removes old history
/// from the log.
///
/// Any number of processes may run the same relay: one publishes, the others stand by. It opens two
/// or three connections in addition to those of the pool.
///
/// ```no_run
/// # #[cfg(all(feature = "kafka", feature = "postgres"))]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_toolkit::{Relay, shutdown_signal};
///
/// let relay = Relay::builder(&pool).kafka(["127.0.0.1:9092"])?.build()?;
/// let relay = tokio::spawn(relay.run(shutdown_signal()));
/// // … the service runs, and ends …
/// relay.await?; // gives the lease back: the next process takes over at once
/// # Ok(()) }
/// ```
#[must_use = "a relay does nothing until it runs"]
pub struct Relay {
    pub(crate) pipeline: Pipeline,
    maintenance: Option<Maintenance>,
    entered: Entered,
    /// Cancelled when it begins to stop, or its future is dropped.
    pub(crate) stop: CancellationToken,
    #[cfg(feature = "page")]
    pub(crate) shown: operate::PipelineConfig,
}

/// A change of the settings, applied once the limit of the broker is known.
type Change = Box<dyn FnOnce(&mut EngineOptions) + Send>;

/// The builder of a [`Relay`]; made by [`Relay::builder`].
#[must_use = "call build"]
pub struct RelayBuilder {
    address: Address,
    name: String,
    source: Option<String>,
    options: LogOptions,
    publishing: Option<Publishing>,
    limit: SizeLimit,
    /// `queue_bytes_max` of Kafka.
    queue_bytes_max: Option<usize>,
    changes: Vec<Change>,
    keep: Option<Duration>,
    hint: Option<Arc<Notify>>,
}

/// The reason why a relay cannot be built. The program or its configuration is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildRelayError {
    /// No broker was given.
    #[error(
        "the relay has no broker; call .kafka(..), .rabbitmq(..), .sqs(..), .webhooks(..) or .connector(..) before .build()"
    )]
    NoBroker,
    /// The name cannot be used.
    #[error("the relay's name cannot be used: {0}")]
    Name(#[source] message::InvalidText),
    /// The source cannot be used.
    #[error("the source cannot be used: {0}")]
    Source(#[source] message::InvalidText),
    /// The database cannot be used.
    #[error("the relay cannot read this database: {0}")]
    Database(#[source] LogError),
    /// Messages cannot be kept for this time.
    #[error(
        "messages cannot be kept for this time: {0}; choose a time within this range, or None to keep \
             them forever"
    )]
    Keep(#[source] KeepOutOfBounds),
    /// A setting of the engine cannot be used.
    #[error("the settings cannot be used: {0}")]
    Setting(#[source] InvalidSetting),
}

impl Relay {
    /// Starts to build a relay for the outbox of a database: a pool, whose options are used, or a
    /// URL. The hooks of a pool do not apply: see [`Address`].
    pub fn builder(database: impl Into<Address>) -> RelayBuilder {
        RelayBuilder {
            address: database.into(),
            name: String::from("relay"),
            source: None,
            options: LogOptions::default(),
            publishing: None,
            limit: EngineOptions::default().size_limit,
            queue_bytes_max: None,
            changes: Vec::new(),
            keep: Some(maintenance::KEEP_DEFAULT),
            hint: None,
        }
    }

    /// Returns the health of this relay, now and in the future. Keep it in the state of your
    /// service: [`run`](Self::run) consumes the relay.
    #[must_use]
    pub fn health(&self) -> RelayHealth {
        RelayHealth::new(self.pipeline.status(), self.entered.clone())
    }

    /// Runs until `shutdown` completes. Then it stops reading, waits at most 20 s for outstanding
    /// confirmations, stores its cursor and releases the lease. It waits without limit while
    /// database or broker are unavailable, or a table is missing. A bug that ends a part of it,
    /// such as a panic, is logged, and the relay begins again after 1 s to a minute:
    /// [`RelayHealth::is_healthy`] shows when this recurs.
    ///
    /// Dropping the future loses nothing, but the next process must wait until the lease expires
    /// (15 s).
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let health = self.health();
        // Dropping the set aborts the task.
        let mut following = JoinSet::new();
        following.spawn(health.clone().follow());
        let stop = self.stop;
        let _stopped = stop.clone().drop_guard();
        let mut maintaining = JoinSet::new();
        if let Some(outbox) = self.maintenance {
            maintaining.spawn(outbox.keep_running(stop.clone()));
        }
        let pipeline = self.pipeline.keep_running(stop.clone(), AfterFault::Restart);
        tokio::pin!(pipeline);
        // The log and the health have reported every fault.
        let _ended = tokio::select! {
            ended = &mut pipeline => ended,
            () = shutdown => {
                stop.cancel();
                pipeline.await
            }
        };
        stop.cancel();
        // The task may not have run since.
        _ = health.in_role_for();
        // A pass in progress ends and reports what it did; one that hangs is abandoned.
        let _ = tokio::time::timeout(maintenance::STOP_GRACE, maintaining.join_all()).await;
    }
}

impl RelayBuilder {
    /// Sets the name under which the cursor and the lease are stored; `relay` by default. Two
    /// relays of one outbox, each to a different broker, need two names.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the CloudEvents source of all messages; by default a slash followed by the name.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the options of connections to the database: schema, timeouts.
    pub fn log_options(mut self, options: LogOptions) -> Self {
        self.options = options;
        self
    }

    /// Publishes to a Kafka cluster with the default settings; for others see
    /// [`kafka_with`](Self::kafka_with).
    ///
    /// # Errors
    /// [`InvalidSetting`](brokers::InvalidSetting): an address that cannot be used.
    #[cfg(feature = "kafka")]
    pub fn kafka(
        self,
        bootstrap_servers: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, brokers::InvalidSetting> {
        self.kafka_with(brokers::kafka::Config::new(bootstrap_servers))
    }

    /// Publishes to a Kafka cluster, in transactions if the settings request them. Its
    /// `queue_bytes_max` must be at least twice the engine's window: [`build`](Self::build) refuses
    /// less.
    ///
    /// # Errors
    /// [`InvalidSetting`](brokers::InvalidSetting) names the setting, its value and the accepted
    /// values.
    #[cfg(feature = "kafka")]
    pub fn kafka_with(self, config: brokers::kafka::Config) -> Result<Self, brokers::InvalidSetting> {
        let limit = config.size_limit();
        let queue_bytes_max = Some(config.queue_bytes_max);
        let builder = if config.transactional {
            self.transactions(brokers::kafka::TransactionalConnector::new(config)?, limit)
        } else {
            self.connector(brokers::kafka::Connector::new(config)?, limit)
        };
        Ok(Self { queue_bytes_max, ..builder })
    }

    /// Publishes to RabbitMQ; [`Config::new`](brokers::rabbitmq::Config::new) takes a URL.
    ///
    /// # Errors
    /// [`InvalidSetting`](brokers::InvalidSetting) names the setting, its value and the accepted
    /// values.
    #[cfg(feature = "rabbitmq")]
    pub fn rabbitmq(self, config: &brokers::rabbitmq::Config) -> Result<Self, brokers::InvalidSetting> {
        let limit = config.size_limit();
        Ok(self.connector(brokers::rabbitmq::Connector::new(config)?, limit))
    }

    /// Publishes to SQS.
    ///
    /// # Errors
    /// [`InvalidSetting`](brokers::InvalidSetting) names the setting, its value and the accepted
    /// values.
    #[cfg(feature = "sqs")]
    pub fn sqs(self, config: &brokers::sqs::Config) -> Result<Self, brokers::InvalidSetting> {
        let limit = config.size_limit();
        Ok(self.connector(brokers::sqs::Connector::new(config)?, limit))
    }

    /// Posts to HTTP endpoints; [`Config::new`](brokers::http::Config::new) takes a URL.
    ///
    /// # Errors
    /// [`InvalidSetting`](brokers::InvalidSetting) names the setting, its value and the accepted
    /// values.
    #[cfg(feature = "webhooks")]
    pub fn webhooks(self, config: &brokers::http::Config) -> Result<Self, brokers::InvalidSetting> {
        let limit = config.size_limit();
        Ok(self.connector(brokers::http::Connector::new(config)?, limit))
    }

    /// Publishes through any other connector, which takes messages up to `limit`.
    pub fn connector(mut self, connector: impl Connector + 'static, limit: SizeLimit) -> Self {
        self.limit = limit;
        self.queue_bytes_max = None;
        self.publishing = Some(Publishing::Plain(Arc::new(connector)));
        self
    }

    /// Publishes through a connector of your own, in its transactions. It takes messages up to
    /// `limit`.
    pub fn transactions(mut self, transactions: impl Transactions + 'static, limit: SizeLimit) -> Self {
        self.limit = limit;
        self.queue_bytes_max = None;
        self.publishing = Some(Publishing::InTransactions(Arc::new(transactions)));
        self
    }

    /// Publishes only messages that this filter accepts, and passes over the others. So several
    /// relays with different names can divide an outbox. Every process of one relay has the same
    /// filter. Messages that were passed over are not read again when the filter changes.
    pub fn filter(self, filter: Filter) -> Self {
        self.settings(|settings| settings.filter = filter)
    }

    /// Changes the engine's settings: window, lease, retries, the consequences of a dead message. A
    /// size limit above the broker's is lowered to the broker's. [`build`](Self::build) refuses
    /// settings that the engine cannot work with, such as an interval of zero.
    pub fn settings(mut self, change: impl FnOnce(&mut EngineOptions) + Send + 'static) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// Sets how long messages are kept after every relay has passed them: 3 days by default,
    /// forever with `None`. At least a minute and at most 5 days ([`KEEP_MESSAGES`]), because on
    /// PostgreSQL their space must be free again after 6 days. Operators' decisions are kept for
    /// three years, or forever with `None`.
    pub fn keep(mut self, keep: Option<Duration>) -> Self {
        self.keep = keep;
        self
    }

    /// Wakes the relay whenever this outbox commits, so that messages are published at once instead
    /// of at the next poll (at most 50 ms later).
    pub fn woken_by<DB: outbox::Dialect>(mut self, outbox: &Outbox<DB>) -> Self {
        self.hint = Some(outbox.wake_up().notify());
        self
    }

    /// Builds the relay. Connects to nothing yet.
    ///
    /// # Errors
    /// [`BuildRelayError`] names what is missing or invalid.
    pub fn build(self) -> Result<Relay, BuildRelayError> {
        let name = RelayName::new(self.name.as_str()).map_err(BuildRelayError::Name)?;
        let source = self.source.unwrap_or_else(|| format!("/{}", self.name));
        let source = Source::new(source).map_err(BuildRelayError::Source)?;
        self.keep.map_or(Ok(()), |keep| KEEP_MESSAGES.check(keep)).map_err(BuildRelayError::Keep)?;
        let options = self.options;
        let publishing = self.publishing.ok_or(BuildRelayError::NoBroker)?;
        #[cfg(feature = "page")]
        let mut shown = {
            let database = operate::Database::lent(self.address.clone(), options.clone());
            let broker = operate::Broker::Given { publishing: publishing.clone(), size_limit: self.limit };
            crate::shown::shown(&name, &source, database, broker, self.keep)
        };
        let store = outbox_log::open(self.address.clone(), source.clone(), options.clone())
            .map_err(BuildRelayError::Database)?;
        let maintenance = match self.keep {
            Some(keep) => {
                let log = outbox_log::retention::open(self.address, source, options)
                    .map_err(BuildRelayError::Database)?;
                let keep_decisions = Some(maintenance::KEEP_DECISIONS_DEFAULT);
                Some(Maintenance { log, keep, keep_decisions, telemetry: History::new(&name) })
            }
            None => None,
        };
        let mut settings = EngineOptions::default().size_limit(self.limit);
        for change in self.changes {
            change(&mut settings);
        }
        if settings.size_limit.message_bytes_max > self.limit.message_bytes_max {
            settings.size_limit = self.limit;
        }
        if let Some(splitter) = &mut settings.chunking
            && splitter.limit.message_bytes_max > self.limit.message_bytes_max
        {
            splitter.limit = self.limit;
        }
        settings.check().map_err(BuildRelayError::Setting)?;
        if let Some(bytes) = self.queue_bytes_max {
            settings.check_room("kafka.queue_bytes_max", bytes).map_err(BuildRelayError::Setting)?;
        }
        #[cfg(feature = "page")]
        shown.settings.clone_from(&settings);
        let pipeline = Pipeline::new(name, store, publishing, settings);
        let pipeline = match self.hint {
            Some(hint) => pipeline.with_notify(hint),
            None => pipeline,
        };
        let stop = CancellationToken::new();
        Ok(Relay {
            pipeline,
            maintenance,
            entered: Entered::starting(),
            stop,
            #[cfg(feature = "page")]
            shown,
        })
    }
}

#[cfg(all(test, feature = "memory", feature = "sqlite"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use brokers::memory::Broker;
    use message::MaxInFlightPerKey;
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    fn refused(database: impl Into<Address>, change: impl FnOnce(RelayBuilder) -> RelayBuilder) -> String {
        let connector = Broker::new().connector(MaxInFlightPerKey::Pipelined);
        let builder = Relay::builder(database).connector(connector, SizeLimit::PORTABLE);
        change(builder).build().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn wrong_settings_are_named_before_anything_runs() {
        let told = Relay::builder("sqlite:orders.db").build().err().unwrap().to_string();
        assert!(told.contains("no broker"), "{told}");
        let told = refused("sqlite:orders.db", |builder| builder.name("Orders!"));
        assert!(told.contains("Orders!") && told.contains("a-z"), "{told}");
        let told = refused("sqlite:orders.db", |builder| builder.source("or ders"));
        assert!(told.contains("source"), "{told}");
        let told = refused("mysql://u@h/d", |builder| builder);
        assert!(told.contains("mysql"), "{told}");
        let told = refused("sqlite:orders.db?mode=memory", |builder| builder);
        assert!(told.contains("in memory"), "{told}");
        assert_eq!(refused("sqlite:orders.db", |builder| builder), "");
    }

    /// With a longer time, no space of PostgreSQL's outbox would ever be reused.
    #[test]
    fn messages_are_kept_for_a_time_within_the_bounds() {
        let kept = |keep| refused("sqlite:orders.db", |builder| builder.keep(keep));
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        for keep in [days(5), Some(Duration::from_secs(60)), None] {
            assert_eq!(kept(keep), "", "{keep:?}");
        }
        for (keep, value) in [(days(6), "6d"), (Some(Duration::from_secs(59)), "59s")] {
            let told = kept(keep);
            assert!(told.contains(&format!("{value} is outside 1m to 5d; choose")), "{told}");
        }
    }

    /// A timer of zero would panic once the relay leads.
    #[test]
    fn a_setting_that_the_engine_cannot_work_with_is_refused() {
        let told =
            |change: fn(&mut EngineOptions)| refused("sqlite:orders.db", |builder| builder.settings(change));
        let zero = told(|settings| settings.checkpoint_interval = Duration::ZERO);
        assert!(zero.contains("checkpoint_interval: 0s is outside 10ms to 15s"), "{zero}");
        let short = told(|settings| settings.silent_after = Duration::from_nanos(19));
        assert!(short.contains("silent_after: 0s is outside 100ms to 1h"), "{short}");
        assert_eq!(told(|settings| settings.silent_after = Duration::from_millis(100)), "");
    }

    /// Kafka's client would make messages wait behind those of a silent topic.
    #[cfg(feature = "kafka")]
    #[test]
    fn a_queue_that_is_smaller_than_two_windows_is_refused() {
        let build = |bytes: usize| {
            let config = brokers::kafka::Config::new(["127.0.0.1:1"]).queue_bytes_max(bytes);
            let builder = Relay::builder("sqlite:orders.db").kafka_with(config).unwrap();
            builder.build().err().map(|error| error.to_string()).unwrap_or_default()
        };
        let told = build((24 << 20) - 1);
        assert!(told.contains("kafka.queue_bytes_max: 25165823 is less than 25165824, twice"), "{told}");
        assert_eq!(build(24 << 20), "");
        let replaced = refused("sqlite:orders.db", |builder| {
            let config = brokers::kafka::Config::new(["127.0.0.1:1"]).queue_bytes_max(2 << 20);
            let connector = Broker::new().connector(MaxInFlightPerKey::Pipelined);
            builder.kafka_with(config).unwrap().connector(connector, SizeLimit::PORTABLE)
        });
        assert_eq!(replaced, "", "another connector has replaced it");
    }

    /// Messages cross the network unencrypted only if the options permit it.
    #[cfg(feature = "postgres")]
    #[test]
    fn the_options_of_the_log_apply_to_its_connections() {
        let url = "postgres://relay@db.example.com/orders?sslmode=disable";
        let told = refused(url, |builder| builder);
        assert!(told.contains("db.example.com") || told.contains("sslmode"), "{told}");
        let options = LogOptions::default().allow_plaintext(true);
        assert_eq!(refused(url, |builder| builder.log_options(options)), "");
    }

    #[tokio::test]
    async fn a_pool_in_memory_is_refused() {
        let pool = SqlitePoolOptions::new().connect_lazy("sqlite::memory:").unwrap();
        let told = refused(&pool, |builder| builder);
        assert!(told.contains("in memory"), "{told}");
    }
}
