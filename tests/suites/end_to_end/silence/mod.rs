//! A destination that does not answer delays only itself.
//!
//! The relay runs in the test's process, between a real database and a broker that is silent about
//! one topic. Submissions and confirmations are counted at the seam to the broker.

mod gateway;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brokers::kafka::mock::Mock;
use brokers::{kafka, rabbitmq, sqs};
use engine::{EngineOptions, Pipeline};
use harness::watched::Watched;
use message::{Connector, Source};
use outbox::NewMessage;
use outbox_log::{LogOptions, RelayName};
use proxy::AmqpProxy;
use sqlx::Postgres;
use tests::eventually::when;
use tests::workload::Workload;
use tests::{Backend, Broker, Failure, Outcome, Stage, eventually};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use gateway::Gateway;
use tally::Tally;

/// How long the relay waits before it considers a destination silent.
const SILENT_AFTER: Duration = Duration::from_millis(500);
/// Number of messages for the answering destination in each phase, multiplied by [`scale`].
const ALIVE: usize = 600;
/// Environment variable with the scale. A larger number makes phases long enough to compare their
/// times.
const SCALE: &str = "OUTBOX_SILENCE_SCALE";
/// Number of messages for the answering destination for each message to the silent destination.
const PER_SILENT: usize = 30;
/// Rounds of two phases: one without a silent destination, then one with it. The first round is not
/// timed, because connections are opened in it.
const ROUNDS: usize = 3;
const KEYS: usize = 10;
/// The broker that answers late, and its delay: longer than a phase takes.
const LEADER: u8 = 2;
const LATE: Duration = Duration::from_secs(10);

tests::cases! { "{case}/{on}":
    postgres kafka_mock { a_silent_destination_delays_only_itself = late_leader }
    postgres rabbitmq { a_silent_destination_delays_only_itself = unconfirming }
    postgres sqs { a_silent_destination_delays_only_itself = hanging }
}

async fn late_leader(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let silencer = LateLeader::start(&stage)?;
    others_flow(stage, broker, Arc::new(silencer)).await
}

async fn unconfirming(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let silencer = Unconfirming::start(broker.as_ref()).await?;
    others_flow(stage, broker, Arc::new(silencer)).await
}

async fn hanging(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let silencer = Hanging::start(broker.as_ref()).await?;
    others_flow(stage, broker, Arc::new(silencer)).await
}

fn scale() -> Result<usize, Failure> {
    Ok(std::env::var(SCALE).map_or(Ok(1), |scale| scale.parse())?)
}

/// A broker that can be silent about one of two topics.
#[async_trait]
trait Silencer: Send + Sync {
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;
    /// Returns the topic that always answers, and the topic that can be silenced.
    fn topics(&self) -> (String, String);
    fn silence(&self, is_silent: bool) -> Outcome;
}

/// A Kafka topic whose partition is led by a broker that does not answer. A partition of the mock
/// must keep a leader once it is used. Without a leader, librdkafka 2.12.1 ends the process when a
/// record for it arrives.
struct LateLeader {
    mock: Mock,
    topics: (String, String),
}

impl LateLeader {
    fn start(stage: &Stage) -> Result<Self, Failure> {
        let mock = Mock::start(2)?;
        let topics = (stage.unique("alive"), stage.unique("silent"));
        mock.create_topic(&topics.0, 1)?;
        mock.create_topic(&topics.1, 1)?;
        mock.lead(&topics.0, 0, Some(1))?;
        mock.lead(&topics.1, 0, Some(LEADER))?;
        Ok(Self { mock, topics })
    }
}

impl Silencer for LateLeader {
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        let config = kafka::Config::new(self.mock.bootstrap_servers());
        Ok(Arc::new(kafka::Connector::new(config)?))
    }

    fn topics(&self) -> (String, String) {
        self.topics.clone()
    }

    fn silence(&self, is_silent: bool) -> Outcome {
        Ok(self.mock.answer_late(LEADER, if is_silent { LATE } else { Duration::ZERO })?)
    }
}

/// A RabbitMQ queue whose confirms are withheld.
struct Unconfirming {
    proxy: AmqpProxy,
    topics: (String, String),
}

impl Unconfirming {
    async fn start(broker: &dyn Broker) -> Result<Self, Failure> {
        let topics = topics(broker).await?;
        let server = Backend::Rabbitmq.address()?;
        let server =
            server.split(['@', '/']).find(|part| part.starts_with("127.") || part.contains("localhost"));
        let proxy = AmqpProxy::start(server.ok_or("no address")?, topics.1.as_str()).await?;
        Ok(Self { proxy, topics })
    }
}

impl Silencer for Unconfirming {
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        let url = format!("amqp://guest:guest@{}/%2f", self.proxy.address());
        Ok(Arc::new(rabbitmq::Connector::new(&rabbitmq::Config::new(url))?))
    }

    fn topics(&self) -> (String, String) {
        self.topics.clone()
    }

    fn silence(&self, is_silent: bool) -> Outcome {
        self.proxy.silence(is_silent);
        Ok(())
    }
}

/// An SQS queue whose requests get no answer.
struct Hanging {
    gateway: Gateway,
    topics: (String, String),
}

impl Hanging {
    async fn start(broker: &dyn Broker) -> Result<Self, Failure> {
        let topics = topics(broker).await?;
        let gateway = Gateway::start(&Backend::Sqs.address()?, &topics.1).await?;
        Ok(Self { gateway, topics })
    }
}

impl Silencer for Hanging {
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        let config = sqs::Config::default()
            .region("elasticmq")
            .endpoint_url(format!("http://{}", self.gateway.address()))
            .access_key_id("test")
            .secret_access_key("test");
        Ok(Arc::new(sqs::Connector::new(&config)?))
    }

    fn topics(&self) -> (String, String) {
        self.topics.clone()
    }

    fn silence(&self, is_silent: bool) -> Outcome {
        self.gateway.silence(is_silent);
        Ok(())
    }
}

async fn topics(broker: &dyn Broker) -> Result<(String, String), Failure> {
    let topics = (broker.topic_name("alive"), broker.topic_name("silent"));
    broker.create_topic(&topics.0).await?;
    broker.create_topic(&topics.1).await?;
    Ok(topics)
}

/// Goal: while one destination does not answer, every message for the other destination is
/// confirmed, on one session and without copies. The silent destination gets a bounded number of
/// copies, and continues automatically, in the order of its keys. Oracle: submissions and
/// confirmations, counted between engine and broker, in phases with and without silence.
async fn others_flow(stage: Stage, broker: Arc<dyn Broker>, silencer: Arc<dyn Silencer>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let (alive, silent) = silencer.topics();
    let tally = Arc::new(Tally::default());
    let connector = Watched::new(silencer.connector()?, Arc::clone(&tally));
    let store =
        outbox_log::open(&workload.database.relay_url()?, Source::new("/test")?, LogOptions::default())?;
    let settings = EngineOptions::default().silent_after(SILENT_AFTER);
    let pipeline = Pipeline::new(RelayName::new("orders")?, store, Arc::new(connector), settings);
    let stop = CancellationToken::new();
    let relay = tokio::spawn(pipeline.run(stop.clone()));

    let phase_len = ALIVE * scale()?;
    let (mut alive_len, mut silent_len) = (0, 0);
    let (mut fair, mut ratios) = (Duration::ZERO, Vec::new());
    for round in 0..ROUNDS * scale()?.min(2) {
        for is_silent in [false, true] {
            if is_silent {
                silencer.silence(true)?;
            }
            let begun_at = Instant::now();
            for chunk in 0..phase_len / PER_SILENT {
                let mut tx = workload.begin().await?;
                let message = |topic: &String, key: String| NewMessage::new(topic).key(&key).payload("x");
                let alive = (0..PER_SILENT).map(|number| message(&alive, format!("alive-{}", number % KEYS)));
                let silent = message(&silent, format!("silent-{}", chunk % KEYS));
                workload.outbox().enqueue_batch(&mut tx, alive.chain([silent])).await?;
                tx.commit().await?;
            }
            alive_len += phase_len;
            let before = silent_len;
            silent_len += phase_len / PER_SILENT;
            eventually("the other destination has everything", || async {
                Ok(when(tally.confirmed(&alive) == alive_len))
            })
            .await?;
            let took = begun_at.elapsed();
            if is_silent {
                assert_eq!(tally.confirmed(&silent), before, "the destination was not silent");
                silencer.silence(false)?;
                ratios.extend((round > 0).then(|| fair.as_secs_f64() / took.as_secs_f64()));
            } else {
                fair = took;
            }
            eventually("the silent destination has everything", || async {
                Ok(when(tally.confirmed(&silent) == silent_len))
            })
            .await?;
        }
    }
    stop.cancel();
    relay.await?;
    ratios.sort_by(f64::total_cmp);
    let (middle, least, largest) = (ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1]);
    let (most, all) = tally.copies(&silent);
    println!(
        "others at {middle:.2} ({least:.2}–{largest:.2}) of their throughput beside a silent destination, in \
         {} rounds of {phase_len} messages, the last without it in {fair:?}; of {silent_len} silent messages {all} were handed over again, one at most {most} times; {} sessions",
        ratios.len(),
        tally.sessions()
    );
    assert_eq!(tally.copies(&alive), (0, 0), "copies of messages whose destination answered");
    assert!(most <= 2, "a silent message was handed over {} times", most + 1);
    assert_eq!(tally.sessions(), 1);
    tally.assert_order(&silent);
    Ok(())
}
