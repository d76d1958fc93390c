//! The broker: topics or queues of this run, connections of clients, and outages.

use std::fmt::Write as _;
use std::sync::Arc;

use brokers::kafka;
use brokers::kafka::mock::Mock;
#[cfg(feature = "rabbitmq")]
use brokers::rabbitmq;
#[cfg(feature = "sqs")]
use brokers::sqs;
use harness::plain::kafka::Kafka;
use message::Subscriber;
use proxy::Proxy;
#[cfg(any(feature = "rabbitmq", feature = "sqs"))]
use url::Url;

use super::url::BrokerUrl;
use crate::error::DemoError;

/// The connection data of a broker for a child process. Has no `Debug`: it may hold a password.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BrokerSpec {
    /// Kafka.
    Kafka {
        /// Bootstrap servers.
        servers: Vec<String>,
        /// The topic of all messages.
        topic: String,
        /// The number of partitions of the topic.
        partitions: u16,
        /// The consumer's group.
        group: String,
    },
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq {
        /// The server's URL.
        url: String,
        /// The exchange to which relays publish.
        exchange: String,
        /// The routing key of all messages.
        topic: String,
        /// The consumer's queue.
        queue: String,
        /// A second queue, bound like the consumer's, for the checker.
        topic_read: String,
    },
    /// SQS.
    #[cfg(feature = "sqs")]
    Sqs {
        /// The endpoint, or `None` for Amazon itself.
        endpoint: Option<String>,
        /// The region, or `None` for that of the environment.
        region: Option<String>,
        /// Access key and secret, or `None` for those of the environment.
        key: Option<(String, String)>,
        /// The queue.
        queue: String,
    },
}

/// The way in which the broker becomes unreachable.
pub(crate) enum Outage {
    /// The broker is a mock inside this process.
    Mock(Mock),
    /// Relays and consumers reach the broker through a proxy.
    #[cfg_attr(not(any(feature = "rabbitmq", feature = "sqs")), expect(dead_code, reason = "Kafka has none"))]
    Proxy(Proxy),
    /// The broker stays reachable in this run; the text says why.
    Impossible(&'static str),
}

/// A broker with everything that the run needs.
pub(crate) struct Broker {
    /// For relays and consumers: through the proxy, if there is one.
    pub(crate) spec: BrokerSpec,
    /// For the demo's own clients.
    pub(crate) direct: BrokerSpec,
    /// The way in which the broker becomes unreachable.
    pub(crate) outage: Outage,
    /// The name of the broker for people, without secrets.
    pub(crate) name: String,
}

/// Number of partitions of the topic. Keys must spread over the partitions and also share them.
const PARTITIONS: u16 = 4;
/// Seconds until an unsettled SQS message is delivered again. A crashed consumer delays its keys by
/// this time.
#[cfg(feature = "sqs")]
const VISIBILITY_TIMEOUT_SECS: u32 = 4;

impl Broker {
    /// Creates topics and queues with `run` in their names, inside the process or on the broker at
    /// `url`.
    ///
    /// # Errors
    /// [`DemoError`]: the URL cannot be used, or the broker is unreachable or refuses.
    pub(crate) async fn create(url: Option<&str>, run: &str) -> Result<Self, DemoError> {
        match url.map(BrokerUrl::parse).transpose()? {
            None => Self::mock(run),
            Some(BrokerUrl::Kafka(servers)) => Self::kafka(servers, run).await,
            #[cfg(not(feature = "rabbitmq"))]
            Some(BrokerUrl::Rabbitmq(_)) => Err(DemoError::not_built("--broker", "RabbitMQ")),
            #[cfg(not(feature = "sqs"))]
            Some(BrokerUrl::Sqs { .. }) => Err(DemoError::not_built("--broker", "SQS")),
            #[cfg(feature = "rabbitmq")]
            Some(BrokerUrl::Rabbitmq(url)) => Self::rabbitmq(url, run).await,
            #[cfg(feature = "sqs")]
            Some(BrokerUrl::Sqs { endpoint, region, key, fifo }) => {
                let suffix = if fifo { ".fifo" } else { "" };
                let queue = format!("demo-{run}-orders{suffix}");
                Self::sqs(endpoint, BrokerSpec::Sqs { endpoint: None, region, key, queue }).await
            }
        }
    }

    fn mock(run: &str) -> Result<Self, DemoError> {
        let what = "start the Kafka in this process";
        let mock = Mock::start(1).map_err(DemoError::during(what))?;
        let spec = kafka_spec(mock.bootstrap_servers(), run);
        mock.create_topic(spec.topic(), PARTITIONS).map_err(DemoError::during(what))?;
        let name = String::from("kafka in this process");
        Ok(Self { direct: spec.clone(), spec, outage: Outage::Mock(mock), name })
    }

    async fn kafka(servers: Vec<String>, run: &str) -> Result<Self, DemoError> {
        let name = format!("kafka {}", servers.join(","));
        let spec = kafka_spec(servers.clone(), run);
        let admin =
            kafka::Admin::new(&kafka::Config::new(servers)).map_err(DemoError::during("reach Kafka"))?;
        let plan = kafka::TopicPlan::new(spec.topic(), PARTITIONS);
        admin.create_topics(&[plan]).await.map_err(DemoError::during("create a Kafka topic"))?;
        let reason = "Kafka's clients connect to the addresses that its brokers advertise, past any proxy";
        Ok(Self { direct: spec.clone(), spec, outage: Outage::Impossible(reason), name })
    }

    #[cfg(feature = "rabbitmq")]
    async fn rabbitmq(url: Url, run: &str) -> Result<Self, DemoError> {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(5672));
        let name = format!("rabbitmq {host}:{port}");
        let (topic, exchange) = (String::from("orders"), format!("demo-{run}"));
        let (queue, topic_read) = (format!("demo-{run}-charges"), format!("demo-{run}-topic_read"));
        let what = "create an exchange and queues in RabbitMQ";
        let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(url.as_str()))
            .await
            .map_err(DemoError::during("reach RabbitMQ"))?;
        admin.declare_exchange(&exchange).await.map_err(DemoError::during(what))?;
        for queue in [&queue, &topic_read] {
            let options = rabbitmq::QueueOptions::default();
            admin.declare_queue(queue, options).await.map_err(DemoError::during(what))?;
            admin.bind(queue, &exchange, &topic).await.map_err(DemoError::during(what))?;
        }
        admin.close().await;
        let direct = BrokerSpec::Rabbitmq { url: url.to_string(), exchange, topic, queue, topic_read };
        if url.scheme() == "amqps" {
            let reason = "a proxy of ours cannot show the broker's TLS certificate";
            return Ok(Self { spec: direct.clone(), direct, outage: Outage::Impossible(reason), name });
        }
        let proxy = start_proxy(format!("{host}:{port}")).await?;
        let mut through = url.clone();
        redirect(&mut through, &proxy)?;
        let mut spec = direct.clone();
        if let BrokerSpec::Rabbitmq { url, .. } = &mut spec {
            *url = through.to_string();
        }
        Ok(Self { spec, direct, outage: Outage::Proxy(proxy), name })
    }

    #[cfg(feature = "sqs")]
    async fn sqs(endpoint: Option<Url>, mut direct: BrokerSpec) -> Result<Self, DemoError> {
        let base = |url: &Url| url.as_str().trim_end_matches('/').to_owned();
        if let BrokerSpec::Sqs { endpoint: slot, .. } = &mut direct {
            *slot = endpoint.as_ref().map(base);
        }
        let name = format!("sqs {}", endpoint.as_ref().map_or_else(|| String::from("of Amazon"), base));
        let name = if direct.topic().ends_with(".fifo") { format!("{name}, FIFO") } else { name };
        let admin =
            sqs::Admin::connect(&direct.sqs_config()).await.map_err(DemoError::during("reach SQS"))?;
        admin.create_queue(direct.topic()).await.map_err(DemoError::during("create an SQS queue"))?;
        let Some(mut url) = endpoint.filter(|url| url.scheme() == "http") else {
            let reason = "a proxy of ours cannot show the broker's TLS certificate";
            return Ok(Self { spec: direct.clone(), direct, outage: Outage::Impossible(reason), name });
        };
        let upstream =
            format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(80));
        let proxy = start_proxy(upstream).await?;
        redirect(&mut url, &proxy)?;
        let mut spec = direct.clone();
        if let BrokerSpec::Sqs { endpoint, .. } = &mut spec {
            *endpoint = Some(base(&url));
        }
        Ok(Self { spec, direct, outage: Outage::Proxy(proxy), name })
    }

    /// Removes topics, queues and exchanges from a broker outside this process.
    pub(crate) async fn remove(&self) -> Result<(), DemoError> {
        if matches!(self.outage, Outage::Mock(_)) {
            return Ok(());
        }
        match &self.direct {
            BrokerSpec::Kafka { servers, topic, group, .. } => {
                let what = "remove a topic from Kafka";
                let admin = kafka::Admin::new(&kafka::Config::new(servers.clone()));
                let admin = admin.map_err(DemoError::during(what))?;
                admin.delete_topics(&[topic]).await.map_err(DemoError::during(what))?;
                let removed = Kafka::new(servers.join(",")).remove_group(group).await;
                removed.map_err(DemoError::during("remove a consumer group from Kafka"))
            }
            #[cfg(feature = "rabbitmq")]
            BrokerSpec::Rabbitmq { url, exchange, queue, topic_read, .. } => {
                let what = "remove exchange and queues from RabbitMQ";
                let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(url.as_str())).await;
                let admin = admin.map_err(DemoError::during(what))?;
                for queue in [queue, topic_read] {
                    admin.delete_queue(queue).await.map_err(DemoError::during(what))?;
                }
                admin.delete_exchange(exchange).await.map_err(DemoError::during(what))?;
                admin.close().await;
                Ok(())
            }
            #[cfg(feature = "sqs")]
            BrokerSpec::Sqs { queue, .. } => {
                let what = "remove a queue from SQS";
                let admin = sqs::Admin::connect(&self.direct.sqs_config()).await;
                let admin = admin.map_err(DemoError::during(what))?;
                admin.delete_queue(queue).await.map_err(DemoError::during(what))
            }
        }
    }
}

impl BrokerSpec {
    /// Returns the topic of every message.
    pub(crate) fn topic(&self) -> &str {
        match self {
            Self::Kafka { topic, .. } => topic,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq { topic, .. } => topic,
            #[cfg(feature = "sqs")]
            Self::Sqs { queue, .. } => queue,
        }
    }

    /// Returns whether the broker keeps the order of a key.
    pub(crate) fn is_ordered(&self) -> bool {
        match self {
            #[cfg(feature = "sqs")]
            Self::Sqs { queue, .. } => queue.ends_with(".fifo"),
            _ => true,
        }
    }

    /// Returns whether consumers start from offsets, which can be moved back.
    pub(crate) fn has_offsets(&self) -> bool {
        matches!(self, Self::Kafka { .. })
    }

    /// Returns the section of the relays' configuration.
    pub(crate) fn section(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Kafka { servers, .. } => {
                let properties = KAFKA_PROPERTIES.map(|(name, value)| format!("{name:?} = {value:?}\n"));
                let properties = properties.concat();
                write!(
                    text,
                    "[pipeline.kafka]\nbootstrap_servers = {servers:?}\n[pipeline.kafka.properties]\n{properties}"
                )
            }
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq { url, exchange, .. } => {
                writeln!(text, "[pipeline.rabbitmq]\nurl = {url:?}\nexchange = {exchange:?}")
            }
            #[cfg(feature = "sqs")]
            Self::Sqs { endpoint, region, key, .. } => {
                let (id, secret) = key.clone().unzip();
                let settings = [
                    ("endpoint_url", endpoint),
                    ("region", region),
                    ("access_key_id", &id),
                    ("secret_access_key", &secret),
                ];
                let given = settings.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
                let given: String = given.map(|(name, value)| format!("{name} = {value:?}\n")).collect();
                writeln!(text, "[pipeline.sqs]\n{given}")
            }
        };
        text
    }

    /// Returns the subscriber of a consumer, which makes all its sessions.
    pub(crate) fn subscriber(&self) -> Result<Arc<dyn Subscriber>, brokers::InvalidSetting> {
        Ok(match self {
            Self::Kafka { servers, topic, partitions, group } => {
                // Partitions are fixed, because there is one consumer at a time, and its successor
                // does not have to wait until the group has removed a crashed member.
                let mut config = kafka::GroupConfig::new(group, Vec::<String>::new());
                config.partitions = (0..*partitions)
                    .map(|partition| kafka::Partition { topic: topic.clone(), partition })
                    .collect();
                let client = kafka::Config::new(servers);
                let client = KAFKA_PROPERTIES
                    .iter()
                    .fold(client, |client, (name, value)| client.property(*name, *value));
                Arc::new(kafka::Subscriber::new(client, config)?)
            }
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq { url, queue, .. } => {
                Arc::new(rabbitmq::Subscriber::new(&rabbitmq::Config::new(url), [queue])?)
            }
            #[cfg(feature = "sqs")]
            Self::Sqs { queue, .. } => Arc::new(sqs::Subscriber::new(&self.sqs_config(), queue)?),
        })
    }

    #[cfg(feature = "sqs")]
    fn sqs_config(&self) -> sqs::Config {
        let mut config = sqs::Config::default();
        if let Self::Sqs { endpoint, region, key, .. } = self {
            config.endpoint_url.clone_from(endpoint);
            config.region.clone_from(region);
            if let Some((id, secret)) = key {
                config.access_key_id = Some(id.clone());
                config.secret_access_key = Some(secret.clone().into());
            }
        }
        config.visibility_timeout_secs = VISIBILITY_TIMEOUT_SECS;
        config
    }
}

/// Properties that let clients notice soon that the broker is unreachable or back, so that a run is
/// short. In one run with the mock cluster, a connection stayed open through an outage, but got no
/// further answers. Only a timeout detects that.
const KAFKA_PROPERTIES: [(&str, &str); 3] = [
    // The default of librdkafka is 10 s.
    ("reconnect.backoff.max.ms", "500"),
    // The default is 60 s.
    ("socket.timeout.ms", "4000"),
    // The default for producers is 30 s.
    ("request.timeout.ms", "3000"),
];

fn kafka_spec(servers: Vec<String>, run: &str) -> BrokerSpec {
    let (topic, group) = (format!("demo-{run}-orders"), format!("demo-{run}-charges"));
    BrokerSpec::Kafka { servers, topic, partitions: PARTITIONS, group }
}

#[cfg(any(feature = "rabbitmq", feature = "sqs"))]
async fn start_proxy(upstream: String) -> Result<Proxy, DemoError> {
    Proxy::start(0, upstream).await.map_err(DemoError::during("listen on a port of this machine"))
}

#[cfg(any(feature = "rabbitmq", feature = "sqs"))]
fn redirect(url: &mut Url, proxy: &Proxy) -> Result<(), DemoError> {
    let address = proxy.address();
    let host = url.set_host(Some(&address.ip().to_string()));
    host.map_err(DemoError::during("put the proxy into the broker's URL"))?;
    url.set_port(Some(address.port()))
        .map_err(|()| DemoError::Usage(String::from("--broker: the URL cannot have a port")))
}
