//! The services' own TLS: a relay and a consumer with every connection encrypted and verified.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use brokers::oauth::OAuth;
use brokers::{kafka, rabbitmq, sqs};
use conformance::{Broker as _, Foreign, Redelivery};
use harness::plain::PlainRecord;
use libtest_mimic::Trial;
use message::{Connector, Fault, MaxInFlightPerKey, Receipts, Subscription};
use sqlx::Postgres;
use tests::brokers::Broker;
use tests::facts::Order;
use tests::issuer::{self, CLIENT, Issuer};
use tests::relay_process::Config;
use tests::tls::{Authority, Front, Opening, Shown};
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, brokers as plain, trial};

use crate::places::{Place, Trust, sqs_config, verified};

/// The way a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    KafkaCertificate,
    KafkaPassword(&'static str),
    KafkaToken,
    RabbitmqPassword,
    RabbitmqCertificate,
    SqsKey,
}

const WAYS: [(Way, &str); 8] = [
    (Way::KafkaCertificate, "kafka/client_certificate"),
    (Way::KafkaPassword("PLAIN"), "kafka/sasl_plain"),
    (Way::KafkaPassword("SCRAM-SHA-256"), "kafka/sasl_scram_sha_256"),
    (Way::KafkaPassword("SCRAM-SHA-512"), "kafka/sasl_scram_sha_512"),
    (Way::KafkaToken, "kafka/sasl_oauthbearer"),
    (Way::RabbitmqPassword, "rabbitmq/password"),
    (Way::RabbitmqCertificate, "rabbitmq/client_certificate"),
    (Way::SqsKey, "sqs/behind_a_proxy"),
];

impl Way {
    fn backend(self) -> Backend {
        match self {
            Self::KafkaCertificate | Self::KafkaPassword(_) | Self::KafkaToken => Backend::Kafka,
            Self::RabbitmqPassword | Self::RabbitmqCertificate => Backend::Rabbitmq,
            Self::SqsKey => Backend::SqsFifo,
        }
    }

    fn needs(self) -> Vec<Backend> {
        let secure = match self {
            Self::KafkaCertificate => vec![Backend::KafkaTls, Backend::TlsFiles],
            Self::KafkaPassword(_) | Self::KafkaToken => vec![Backend::KafkaSasl, Backend::TlsFiles],
            Self::RabbitmqPassword | Self::RabbitmqCertificate => {
                vec![Backend::RabbitmqTls, Backend::TlsFiles]
            }
            Self::SqsKey => vec![Backend::TlsFiles],
        };
        [vec![Backend::Postgres, Backend::PostgresTls, self.backend()], secure].concat()
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (way, name) in WAYS {
        let needs = way.needs();
        trials.push(trial(format!("services/{name}/orders_take_effect_once"), &needs, move |stage| {
            orders_take_effect_once(stage, way)
        }));
        if way != Way::SqsKey {
            trials.push(trial(format!("services/{name}/a_stranger_is_refused"), &needs, move |stage| {
                a_stranger_is_refused(stage, way)
            }));
        }
    }
    trials
}

/// Goal: orders get from the producer's commit to the consumer's effect with every connection
/// verified. Oracle: each order took effect exactly once, in order.
async fn orders_take_effect_once(stage: Stage, way: Way) -> Outcome {
    let broker = Secured::open(&stage, way).await?;
    let workload = Workload::<Postgres>::open(&stage, Arc::new(broker)).await?;
    let trust = Trust { authority: Some(files()?.join("ca.pem")), client: None };
    let port = Place::Postgres.target()?.rsplit_once(':').ok_or("no port")?.1.parse()?;
    let url = verified(&workload.database.relay_url()?, port, &trust)?;
    let relay =
        RelayProcess::start(&stage, &Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, 12).await?;
    workload.settled().await?;
    consumer.stop().await?;
    assert!(!relay.log()?.contains("not encrypted"), "{}", relay.log()?);
    relay.stop().await
}

/// Goal: over TLS as well, a wrong password or certificate is refused. Oracle: the operator's
/// fault.
async fn a_stranger_is_refused(stage: Stage, way: Way) -> Outcome {
    let mut broker = Secured::open(&stage, way).await?;
    broker.password = "s3cret";
    broker.client = Authority::new()?.client_files(&stage)?;
    let (receipts, _) = Receipts::channel();
    let Err(error) = broker.connector()?.connect(receipts).await else { return Err("let in".into()) };
    assert!(!error.to_string().contains("s3cret"), "{error}");
    // A broker that does not know the certificate may simply close the connection.
    if way != Way::RabbitmqCertificate && way != Way::KafkaCertificate {
        assert_eq!(error.fault(), Fault::Operator, "{error}");
    }
    Ok(())
}

fn files() -> Result<PathBuf, Failure> {
    Ok(PathBuf::from(Backend::TlsFiles.address()?))
}

/// A broker whose messages are encrypted in transit. Topics are created and read through its plain
/// port.
pub(crate) struct Secured {
    pub(crate) way: Way,
    pub(crate) plain: Arc<dyn Broker>,
    /// `host:port`, a URL, or the port of SQS.
    pub(crate) address: String,
    pub(crate) authority: PathBuf,
    pub(crate) client: (PathBuf, PathBuf),
    /// Of the user, or of the client of `issuer`.
    pub(crate) password: &'static str,
    pub(crate) issuer: Option<Issuer>,
}

impl Secured {
    pub(crate) async fn open(stage: &Stage, way: Way) -> Result<Self, Failure> {
        let folder = files()?;
        let mut authority = folder.join("ca.pem");
        let address = match way {
            Way::KafkaCertificate => Backend::KafkaTls.address()?,
            Way::KafkaPassword(_) | Way::KafkaToken => Backend::KafkaSasl.address()?,
            Way::RabbitmqPassword | Way::RabbitmqCertificate => {
                Backend::RabbitmqTls.address()?.replace("guest:guest@", "")
            }
            Way::SqsKey => {
                let own = Authority::new()?;
                authority = own.file(stage)?;
                let target = Place::Sqs.target()?;
                Front::start(stage, target, Opening::Direct, &own, Shown::Good, None).await?.port.to_string()
            }
        };
        let client = (folder.join("client.pem"), folder.join("client.key"));
        let password = match way {
            Way::KafkaToken => issuer::SECRET,
            Way::KafkaCertificate | Way::KafkaPassword(_) => "outbox",
            Way::RabbitmqPassword | Way::RabbitmqCertificate | Way::SqsKey => "guest",
        };
        let issuer = match way {
            Way::KafkaToken => Some(Issuer::start(stage, Shown::Good).await?),
            _ => None,
        };
        Ok(Self {
            way,
            plain: plain::open(stage, way.backend()).await?,
            address,
            authority,
            client,
            password,
            issuer,
        })
    }

    fn trust(&self) -> Trust {
        let shows = matches!(self.way, Way::KafkaCertificate | Way::RabbitmqCertificate);
        Trust { authority: Some(self.authority.clone()), client: shows.then(|| self.client.clone()) }
    }

    /// Returns the broker's section of a configuration.
    fn section(&self) -> String {
        let Trust { authority, client } = self.trust();
        let mut tls = format!("ca_file = {:?}", authority.unwrap_or_default());
        if let Some((cert, key)) = client {
            tls.push_str(&format!(", cert_file = {cert:?}, key_file = {key:?}"));
        }
        let (address, password) = (&self.address, self.password);
        match self.way {
            Way::KafkaCertificate => {
                format!("[pipeline.kafka]\nbootstrap_servers = [{address:?}]\ntls = {{ {tls} }}\n")
            }
            Way::KafkaPassword(mechanism) => format!(
                "[pipeline.kafka]\nbootstrap_servers = [{address:?}]\ntls = {{ {tls} }}\n\
                 sasl = {{ mechanism = {mechanism:?}, username = \"outbox\", password = {password:?} }}\n"
            ),
            Way::KafkaToken => {
                let issuer = self.issuer.as_ref();
                let url = issuer.map(Issuer::url).unwrap_or_default();
                let ca_file = issuer.map(Issuer::authority).unwrap_or(Path::new(""));
                format!(
                    "[pipeline.kafka]\nbootstrap_servers = [{address:?}]\ntls = {{ {tls} }}\n\
                     [pipeline.kafka.sasl]\nmechanism = \"OAUTHBEARER\"\n\
                     oauth = {{ token_url = {url:?}, client_id = {CLIENT:?}, client_secret = {password:?}, \
                     ca_file = {ca_file:?} }}\n"
                )
            }
            Way::RabbitmqPassword => format!(
                "[pipeline.rabbitmq]\nurl = {address:?}\nusername = \"guest\"\npassword = {password:?}\ntls = {{ {tls} }}\n"
            ),
            Way::RabbitmqCertificate => {
                format!("[pipeline.rabbitmq]\nurl = {address:?}\nauth = \"external\"\ntls = {{ {tls} }}\n")
            }
            Way::SqsKey => format!(
                "[pipeline.sqs]\nregion = \"elasticmq\"\nendpoint_url = \"https://127.0.0.1:{address}\"\n\
                 access_key_id = \"x\"\nsecret_access_key = \"x\"\ntls = {{ {tls} }}\n"
            ),
        }
    }

    pub(crate) fn kafka(&self) -> Result<kafka::Config, Failure> {
        let mut config = plain::patient_kafka(&self.address);
        config.tls = Some(self.trust().tls());
        if let Way::KafkaPassword(mechanism) = self.way {
            let (username, password) = ("outbox", self.password);
            let sasl =
                serde_json::json!({ "mechanism": mechanism, "username": username, "password": password });
            config.sasl = Some(serde_json::from_value(sasl)?);
        }
        if let Some(issuer) = &self.issuer {
            let client = OAuth::client(issuer.url(), CLIENT).client_secret(self.password);
            config.sasl = Some(kafka::Sasl::oauth(client.ca_file(issuer.authority())));
        }
        Ok(config)
    }

    fn rabbitmq(&self) -> rabbitmq::Config {
        let config = plain::patient_rabbitmq(&self.address).tls(self.trust().tls());
        match self.way {
            Way::RabbitmqCertificate => config.auth(rabbitmq::Auth::External),
            _ => config.username("guest").password(self.password),
        }
    }

    fn sqs(&self) -> Result<sqs::Config, Failure> {
        Ok(sqs_config(self.address.parse()?, &self.trust()))
    }
}

#[async_trait]
impl conformance::Broker for Secured {
    fn topic_name(&self, prefix: &str) -> String {
        self.plain.topic_name(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        self.plain.create_topic(topic).await
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(match self.way.backend() {
            Backend::Kafka => Arc::new(kafka::Connector::new(self.kafka()?)?),
            Backend::Rabbitmq => Arc::new(rabbitmq::Connector::new(&self.rabbitmq())?),
            _ => Arc::new(sqs::Connector::new(&self.sqs()?)?),
        })
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        self.plain.unreachable()
    }

    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        _: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        Ok(match self.way.backend() {
            Backend::Kafka => {
                let group = kafka::GroupConfig::new(group, [topic]);
                kafka::Subscriber::new(self.kafka()?, group)?.subscribe().await?
            }
            Backend::Rabbitmq => rabbitmq::Subscriber::new(&self.rabbitmq(), [topic])?.subscribe().await?,
            _ => sqs::Subscriber::new(&self.sqs()?, topic)?.subscribe().await?,
        })
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.plain.payloads(topic, at_least).await
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.plain.put(topic, foreign).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        self.plain.oversize_bytes()
    }
}

#[async_trait]
impl Broker for Secured {
    fn backend(&self) -> Backend {
        self.plain.backend()
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        self.plain.max_in_flight_per_key()
    }

    fn order(&self) -> Order {
        self.plain.order()
    }

    fn relay_section(&self) -> Option<String> {
        Some(self.section())
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure> {
        self.plain.drain(topic, at_least).await
    }

    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome {
        self.plain.write(topic, record).await
    }
}
