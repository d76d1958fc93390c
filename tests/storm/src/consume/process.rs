//! The process of a consumer.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brokers::{kafka, rabbitmq, sqs};
use inbox::{Backoff, Consumer, ConsumerName, Inbox, InboxOptions, Shutdown};
use message::{Subscriber, Subscription};
use sqlx::{Pool, Postgres, Sqlite};
use tokio_util::sync::CancellationToken;

use super::handler::{Apply, Known, tenant_of};
use super::receiver::Receiver;
use crate::Failure;
use crate::process;
use crate::setup::HEARTBEAT;
use crate::workload::Workload;
use harness::journal::{Journal, Journaled};

/// The task of a consumer process.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct ConsumerTask {
    /// The database of the inbox.
    pub database: String,
    /// The subscription that the consumer reads.
    pub broker: BrokerAddress,
    /// The consumer's name.
    pub consumer: String,
    /// A second name under which every message is applied in the same transaction. It is used where
    /// a message goes to only one reader.
    pub also: Option<String>,
    /// Whether the consumer handles many messages in one transaction.
    pub batch: bool,
    /// Whether the inbox's guard is on.
    pub guarded: bool,
    /// The journal of the messages that the consumer receives.
    pub journal: PathBuf,
}

/// A broker as a consumer reaches it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BrokerAddress {
    /// Kafka.
    Kafka {
        /// Bootstrap servers.
        servers: Vec<String>,
        /// The topic.
        topic: String,
        /// The consumer group.
        group: String,
        /// The partitions assigned to this reader. If there are none, the group shares all
        /// partitions.
        partitions: Vec<u16>,
    },
    /// RabbitMQ.
    Rabbitmq {
        /// The server's URL.
        url: String,
        /// The queue.
        queue: String,
    },
    /// SQS.
    Sqs {
        /// The endpoint.
        endpoint: String,
        /// The queue.
        queue: String,
    },
    /// HTTP.
    Http {
        /// The gateway to which receivers announce themselves.
        gateway: String,
        /// The topic.
        topic: String,
    },
}

/// Maximum number of messages in a transaction that may contain several.
const BATCH: NonZeroUsize = NonZeroUsize::new(25).unwrap();
/// Maximum number of unsettled deliveries.
const PREFETCH: NonZeroUsize = NonZeroUsize::new(100).unwrap();
/// Number of concurrent transactions.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// Maximum number of attempts of a handler.
pub(crate) const ATTEMPTS_MAX: u32 = 3;
/// Time until an unsettled SQS message is delivered again. A killed consumer delays its messages by
/// this time.
pub(crate) const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(4);
/// Time until a Kafka group gives a silent member's partitions to others.
pub(crate) const SESSION: Duration = Duration::from_secs(6);
/// The keep-alive interval, below half of both times above.
const KEEP_ALIVE: Duration = Duration::from_millis(1_500);
/// Timeout for a connection from the pool.
pub(crate) const ACQUIRE: Duration = Duration::from_secs(5);

/// Runs a consumer until it is stopped.
///
/// # Errors
/// The task cannot be used, or the inbox cannot be opened. The process is then started again.
pub async fn run(task: ConsumerTask) -> Result<(), Failure> {
    match outbox::connect::dialect_of(&task.database)? {
        migrations::Dialect::Postgres => {
            let options = outbox::connect::postgres_options(&task.database, false)?;
            let pool = outbox::pool_options::<Postgres>().acquire_timeout(ACQUIRE).connect_lazy_with(options);
            consume(pool, task).await
        }
        migrations::Dialect::Sqlite => {
            let options = outbox::connect::sqlite_options(&task.database)?;
            let pool = outbox::pool_options::<Sqlite>().acquire_timeout(ACQUIRE).connect_lazy_with(options);
            consume(pool, task).await
        }
    }
}

async fn consume<DB: Workload>(pool: Pool<DB>, task: ConsumerTask) -> Result<(), Failure> {
    let stop = process::stop_on_signals()?;
    let inbox = Inbox::open(pool, InboxOptions::default()).await?;
    let name = ConsumerName::new(task.consumer.as_str())?;
    let also = match &task.also {
        Some(also) => Some((inbox.clone(), ConsumerName::new(also.as_str())?)),
        None => None,
    };
    let journal = Arc::new(Journal::open(&task.journal)?);
    let keeps_parts = matches!(task.broker, BrokerAddress::Sqs { .. } | BrokerAddress::Http { .. });
    let subscriber = task.broker.subscriber()?;
    let consumer: Arc<str> = task.consumer.as_str().into();
    let mut builder = Consumer::builder(inbox, name.clone())
        .subscribe(move || {
            let (subscriber, journal) = (Arc::clone(&subscriber), Arc::clone(&journal));
            let consumer = Arc::clone(&consumer);
            async move {
                let inner = subscriber.subscribe().await?;
                Ok(Box::new(Journaled { inner, journal, consumer, keeps_parts, handled: None })
                    as Box<dyn Subscription>)
            }
        })
        .handler(Apply { consumer: name, also, known: Known::default() })
        .tenant(tenant_of)
        .backoff(Backoff { first: Duration::from_millis(100), max: Duration::from_millis(500) })
        .attempts_max(ATTEMPTS_MAX)
        .concurrency(CONCURRENCY)
        .prefetch(PREFETCH)
        .keep_alive_interval(KEEP_ALIVE);
    if task.batch {
        builder = builder.batch(BATCH);
    }
    if !task.guarded {
        builder = builder.without_guard();
    }
    let shutdown = Shutdown { graceful: stop, abort: CancellationToken::new() };
    Ok(builder.build()?.run(shutdown).await?)
}

impl BrokerAddress {
    /// Returns the subscriber of a consumer, which makes all its sessions.
    pub(crate) fn subscriber(&self) -> Result<Arc<dyn Subscriber>, brokers::InvalidSetting> {
        Ok(match self {
            Self::Kafka { servers, topic, group, partitions } => {
                let mut config = kafka::GroupConfig::new(group, [topic]);
                if !partitions.is_empty() {
                    let own = |&partition| kafka::Partition { topic: topic.clone(), partition };
                    config.partitions = partitions.iter().map(own).collect();
                    config.topics.clear();
                }
                config.session_timeout_ms = SESSION.as_millis() as u64;
                let client =
                    KAFKA_PROPERTIES.iter().fold(kafka::Config::new(servers), |client, (name, value)| {
                        client.property(*name, *value)
                    });
                Arc::new(kafka::Subscriber::new(client, config)?)
            }
            Self::Rabbitmq { url, queue } => {
                let mut config = rabbitmq::Config::new(url);
                config.heartbeat_secs = HEARTBEAT.as_secs() as u16;
                Arc::new(rabbitmq::Subscriber::new(&config, [queue])?)
            }
            Self::Sqs { endpoint, queue } => {
                let mut config = sqs_config(endpoint);
                config.visibility_timeout_secs = VISIBILITY_TIMEOUT.as_secs() as u32;
                config.poll_wait_secs = 1;
                Arc::new(sqs::Subscriber::new(&config, queue)?)
            }
            Self::Http { gateway, topic } => {
                let (gateway, topic) = (gateway.clone(), topic.clone());
                Arc::new(move || {
                    let (gateway, topic) = (gateway.clone(), topic.clone());
                    async move {
                        let receiver = Receiver::open(&gateway, &topic).await?;
                        Ok(Box::new(receiver) as Box<dyn Subscription>)
                    }
                })
            }
        })
    }
}

/// Timeouts of librdkafka in a storm, which let clients notice soon that the broker is unreachable
/// or back.
pub(crate) const KAFKA_PROPERTIES: [(&str, &str); 2] =
    [("reconnect.backoff.max.ms", "500"), ("socket.timeout.ms", "6000")];

/// Returns a configuration for a server that accepts any credentials.
pub(crate) fn sqs_config(endpoint: &str) -> sqs::Config {
    sqs::Config::default()
        .endpoint_url(endpoint)
        .region("elasticmq")
        .access_key_id("storm")
        .secret_access_key("storm")
        .request_timeout_ms(4_000)
}
