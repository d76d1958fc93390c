//! Resident memory of the relay with many parked entries, in a separate process with default
//! settings.
//!
//! The broker is librdkafka's mock, which can delay its answers.

use std::time::{Duration, Instant};

use brokers::kafka::mock::{ApiKey, Mock, ResponseError};

use super::rows::{HELD, Rows, clear, park};
use crate::Failure;
use crate::cli::Run;
use crate::report::Report;
use crate::rig::{Database, PATIENCE, RelayProcess, Shape, reach};
use crate::target::{Kafka, fresh_topic};

const MIB_MAX: f64 = 96.0;
const PAYLOAD: u32 = 1_024;
const POLL: Duration = Duration::from_millis(50);
/// A delay after which nothing is answered in time.
const NEVER: Duration = Duration::from_secs(86_400);

/// A load on the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Everything is due at once, and the broker stops answering.
    DueAndSilent,
    /// Everything is due at once, and the broker stops answering for that topic.
    DueAndPartlySilent,
    /// The broker refuses the topic: the whole backlog is held.
    Held,
    /// A successor finds held rows and equally many due ones, and the broker stops answering.
    Takeover,
}

impl Scene {
    const ALL: [Self; 4] = [Self::DueAndSilent, Self::DueAndPartlySilent, Self::Held, Self::Takeover];

    fn name(self) -> &'static str {
        match self {
            Self::DueAndSilent => "scheduled and due at once, a silent broker",
            Self::DueAndPartlySilent => "scheduled and due at once, a silent topic",
            Self::Held => "held while their topic is refused",
            Self::Takeover => "held and as many due, taken over, a silent broker",
        }
    }
}

pub(super) async fn run(run: &Run, rows: &[u32], keys: u32, report: &mut Report) -> Result<(), Failure> {
    let watch = Duration::from_secs(if run.options.quick { 1 } else { 30 });
    let database = Database::create().await?;
    // The load on the successor contains the other loads.
    let scenes = if run.options.quick { &[Scene::Takeover][..] } else { &Scene::ALL };
    let progress = run.progress(rows.len() * scenes.len())?;
    let mut peaks = Vec::new();
    for &scene in scenes {
        for &rows in rows {
            progress.set_message(format!("{rows} {}", scene.name()));
            let stage = Stage { database: &database, rows, keys, watch };
            peaks.push((scene, rows, stage.peak(scene).await?));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    database.drop().await?;
    report.table(
        format!("peak of resident memory, rows of {PAYLOAD} B with {keys} keys, default settings"),
        ["parked entries", "scene", "MiB"],
        peaks.iter().map(|(scene, rows, mib)| [(*rows).into(), scene.name().into(), (*mib).into()]),
    );
    if let Some((scene, rows, mib)) = peaks.iter().find(|(.., mib)| run.options.quick && *mib > MIB_MAX) {
        // The only figure that hardly depends on the machine.
        return Err(format!("{rows} rows {}: {mib:.0} MiB, at most {MIB_MAX} wanted", scene.name()).into());
    }
    for &scene in scenes {
        let peaks = peaks.iter().filter(|(of, ..)| *of == scene).map(|(.., mib)| *mib);
        report.at_most(format!("resident MiB: {}", scene.name()), MIB_MAX, peaks.fold(0.0, f64::max));
    }
    Ok(())
}

struct Stage<'a> {
    database: &'a Database,
    rows: u32,
    keys: u32,
    watch: Duration,
}

impl Stage<'_> {
    async fn peak(&self, scene: Scene) -> Result<f64, Failure> {
        clear(self.database).await?;
        let broker = Broker::start()?;
        if scene == Scene::Held {
            return self.held(&broker).await;
        }
        if scene == Scene::Takeover {
            self.park(&broker.topic, "held").await?;
            self.park(&broker.topic, "scheduled").await?;
        }
        let relay = self.relay(&broker)?;
        self.warm_up(&broker).await?;
        broker.fall_silent(scene == Scene::DueAndPartlySilent)?;
        if scene != Scene::Takeover {
            self.park(&broker.topic, "scheduled").await?;
        }
        if scene == Scene::DueAndPartlySilent {
            self.answer_others(&broker).await?;
        }
        self.end(relay).await
    }

    /// Writes messages to the other topic: only their answers show that one topic alone is silent.
    async fn answer_others(&self, broker: &Broker) -> Result<(), Failure> {
        let until = Instant::now() + self.watch;
        while Instant::now() < until {
            self.database.fill(&broker.other, Shape { messages: 1, payload_bytes: 1, keys: 1 }).await?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn held(&self, broker: &Broker) -> Result<f64, Failure> {
        // A request uses up one error, and a session has many requests, one of which is enough to
        // block the topic again.
        broker.refuse()?;
        let shape = Shape { messages: self.rows, payload_bytes: PAYLOAD, keys: self.keys };
        self.database.fill(&broker.topic, shape).await?;
        let relay = self.relay(broker)?;
        let held = async || {
            broker.refuse()?;
            relay.memory_peak_mib()?;
            Ok(self.database.number(HELD).await?.unsigned_abs())
        };
        reach(u64::from(self.rows) * 99 / 100, PATIENCE, POLL, held).await?;
        self.end(relay).await
    }

    fn relay(&self, broker: &Broker) -> Result<RelayProcess, Failure> {
        RelayProcess::start(self.database, &broker.kafka.section())
    }

    /// Publishes to both topics of the broker once.
    async fn warm_up(&self, broker: &Broker) -> Result<(), Failure> {
        for topic in [&broker.topic, &broker.other] {
            self.database.fill(topic, Shape { messages: 1, payload_bytes: 1, keys: 1 }).await?;
            reach(1, PATIENCE, POLL, async || broker.kafka.records(topic).await).await?;
        }
        Ok(())
    }

    async fn park(&self, topic: &str, state: &str) -> Result<(), Failure> {
        let (rows, keys) = (self.rows, self.keys);
        park(self.database, Rows { topic, state, rows, payload_bytes: PAYLOAD, key: "parked-", keys }).await
    }

    /// Waits under load for a while, and returns the peak in MiB.
    async fn end(&self, relay: RelayProcess) -> Result<f64, Failure> {
        tokio::time::sleep(self.watch).await;
        let peak = relay.memory_peak_mib()?;
        relay.end().await?;
        Ok(peak)
    }
}

/// Two mock brokers, each of which leads one topic.
struct Broker {
    mock: Mock,
    kafka: Kafka,
    topic: String,
    other: String,
}

impl Broker {
    fn start() -> Result<Self, Failure> {
        let mock = Mock::start(2)?;
        let kafka = Kafka::new(mock.bootstrap_servers().join(","));
        let (topic, other) = (fresh_topic(), fresh_topic());
        for (topic, leader) in [(&topic, 1), (&other, 2)] {
            mock.create_topic(topic, Kafka::PARTITIONS)?;
            for partition in 0..Kafka::PARTITIONS {
                mock.lead(topic, partition, Some(leader))?;
            }
        }
        Ok(Self { mock, kafka, topic, other })
    }

    /// Stops all answers, or those for the topic.
    fn fall_silent(&self, partly: bool) -> Result<(), Failure> {
        self.mock.answer_late(1, NEVER)?;
        if !partly {
            self.mock.answer_late(2, NEVER)?;
        }
        Ok(())
    }

    /// Refuses everything that is published for a while.
    fn refuse(&self) -> Result<(), Failure> {
        self.mock.forget_errors(ApiKey::Produce)?;
        self.mock.request_errors(
            ApiKey::Produce,
            &[ResponseError::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 1_000],
        )?;
        Ok(())
    }
}
