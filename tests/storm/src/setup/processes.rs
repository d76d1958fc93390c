//! Starts producers, relays and consumers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use url::Url;

use super::addresses::through;
use super::{ACCOUNTS, Plot, Servers, broker, roles, sagas};
use crate::Failure;
use crate::consume::{BrokerAddress, ConsumerTask, KAFKA_PROPERTIES};
use crate::load::ProducerTask;
use crate::pair::BrokerKind;
use crate::sagas::{OrdersTask, REPLIES, SHIPPING, WorkerTask};
use crate::stage::{Peer, Recipe, Role, Stage, Wire};

/// A setting for the mock cluster, which does not check sequence numbers. After a refused request
/// it stores the next request, as no real broker does, and librdkafka then treats the refused
/// request as stored.
const ONE_REQUEST_IN_FLIGHT: (&str, &str) = ("max.in.flight.requests.per.connection", "1");

/// The programs that a storm runs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// This program, with its hidden subcommands.
    pub storm: PathBuf,
    /// The relay.
    pub relay: PathBuf,
}

/// The relay's name, to which its cursor and its lease belong.
pub const RELAY_NAME: &str = "storm";

const PRODUCERS: usize = 3;
const RELAYS: usize = 2;
/// Number of consumer processes for each name.
const CONSUMERS: usize = 2;
const WORKERS: usize = 2;
/// Pause between two starts of sagas, as a multiple of the pause between two operations.
const PAUSES: u32 = 4;

/// The relay's lease. It is short, so that a storm does not wait long for it to expire.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// Maximum pause before a refused message is retried.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(1);
/// Heartbeat of RabbitMQ's connections.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

fn engine() -> String {
    let (lease, retry) = (LEASE.as_secs(), RETRY_MAX.as_secs());
    format!(
        "[pipeline.engine]\nlease_ttl = \"{lease}s\"\nretry_initial = \"50ms\"\nretry_max = \"{retry}s\"\n\
         attempts_max = 4\nshutdown_grace = \"5s\"\nmessage_bytes_max = 20000\noversize = \"chunk\"\n\
         chunked_bytes_max = 60000\n"
    )
}

pub(super) async fn start(
    plot: &Plot,
    servers: &Servers,
    stage: &Stage,
    programs: &Programs,
) -> Result<(), Failure> {
    let cast = Cast { plot, servers, stage, programs };
    let config = plot.file("relay.toml");
    std::fs::write(&config, cast.relay_config()?)?;
    for number in 0..RELAYS {
        let name = format!("relay-{number}");
        let arguments =
            ["run", "--config"].map(String::from).into_iter().chain([config.display().to_string()]);
        let recipe = Recipe {
            program: programs.relay.clone(),
            arguments: arguments.collect(),
            environment: BTreeMap::from([(String::from("RELAY_LOG"), String::from("info"))]),
            log: plot.file(&format!("{name}.log")),
        };
        stage.processes.keep(&name, Role::Relay, recipe).await;
    }
    for (name, task) in cast.consumers()? {
        cast.keep(&name, Role::Consumer, "consumer", &task).await?;
    }
    for number in 0..WORKERS {
        cast.keep(&format!("worker-{number}"), Role::Worker, "worker", &cast.worker(number)?).await?;
    }
    let orders = OrdersTask { database: cast.saga_database(Role::Worker)?, pause: plot.pause * PAUSES };
    cast.keep("orders-0", Role::Producer, "orders", &orders).await?;
    for number in 0..PRODUCERS {
        let name = format!("producer-{number}");
        let task = ProducerTask {
            database: cast.database(Role::Producer)?,
            topics: plot.topics(),
            accounts: ACCOUNTS,
            pause: plot.pause,
            began: plot.began,
            folder: plot.folder.clone(),
            journal: plot.file(&format!("{name}.journal")),
        };
        cast.keep(&name, Role::Producer, "producer", &task).await?;
    }
    Ok(())
}

struct Cast<'a> {
    plot: &'a Plot,
    servers: &'a Servers,
    stage: &'a Stage,
    programs: &'a Programs,
}

impl Cast<'_> {
    async fn keep(
        &self,
        name: &str,
        role: Role,
        command: &str,
        task: &impl Serialize,
    ) -> Result<(), Failure> {
        let file = self.plot.file(&format!("{name}.json"));
        std::fs::write(&file, serde_json::to_vec_pretty(task)?)?;
        let recipe = Recipe {
            program: self.programs.storm.clone(),
            arguments: vec![command.to_owned(), file.display().to_string()],
            environment: BTreeMap::new(),
            log: self.plot.file(&format!("{name}.log")),
        };
        self.stage.processes.keep(name, role, recipe).await;
        Ok(())
    }

    /// Returns the URL through the proxy, if there is one.
    fn at(&self, role: Role, peer: Peer, direct: &str) -> Result<String, Failure> {
        match self.stage.wires.proxies.get(&Wire { role, peer }) {
            Some(proxy) => through(&Url::parse(direct)?, proxy.address()),
            None => Ok(direct.to_owned()),
        }
    }

    fn database(&self, role: Role) -> Result<String, Failure> {
        let database = &self.stage.database;
        let direct = if role == Role::Consumer { &database.consumers } else { &database.producers };
        self.at(role, Peer::Database, &roles::url(self.plot.pair.database, role, direct)?)
    }

    fn kafka(&self, role: Role) -> Vec<String> {
        match self.stage.wires.proxies.get(&Wire { role, peer: Peer::Broker }) {
            Some(proxy) => vec![proxy.address().to_string()],
            None => self.stage.broker.address.split(',').map(str::to_owned).collect(),
        }
    }

    /// Returns the URL of the sagas' database for the user of this role, through the workers' wire.
    fn saga_database(&self, role: Role) -> Result<String, Failure> {
        let direct = roles::url(self.plot.pair.database, role, &self.stage.database.sagas)?;
        self.at(Role::Worker, Peer::Database, &direct)
    }

    fn worker(&self, number: usize) -> Result<WorkerTask, Failure> {
        let topics = self.plot.saga_topics();
        let bank = roles::url(self.plot.pair.database, Role::Worker, &self.stage.database.bank)?;
        Ok(WorkerTask {
            database: self.saga_database(Role::Worker)?,
            bank: self.at(Role::Worker, Peer::Database, &bank)?,
            ship: self.address(Role::Worker, &topics.ship, SHIPPING, number)?,
            replies: self.address(Role::Worker, &topics.replies, REPLIES, number)?,
            topics,
        })
    }

    fn relay_config(&self) -> Result<String, Failure> {
        let broker = &self.stage.broker;
        let main = self.pipeline(
            RELAY_NAME,
            (&self.database(Role::Relay)?, Role::Relay),
            broker.exchange.as_deref().unwrap_or_default(),
            &engine(),
        )?;
        let sagas = self.pipeline(
            sagas::PIPELINE,
            (&self.saga_database(Role::Relay)?, Role::Worker),
            &sagas::exchange(self.plot),
            &sagas::engine(),
        )?;
        Ok(format!("{main}{sagas}"))
    }

    /// Returns the configuration of a pipeline from a database to the broker, through this role's
    /// wire.
    fn pipeline(
        &self,
        name: &str,
        (database, role): (&str, Role),
        exchange: &str,
        engine: &str,
    ) -> Result<String, Failure> {
        let broker = &self.stage.broker;
        let section = match self.plot.pair.broker {
            BrokerKind::Kafka | BrokerKind::MockKafka => {
                let alone =
                    (self.plot.pair.broker == BrokerKind::MockKafka).then_some(&ONE_REQUEST_IN_FLIGHT);
                let properties: Vec<String> = KAFKA_PROPERTIES
                    .iter()
                    .chain(alone)
                    .map(|(name, value)| format!("{name:?} = {value:?}\n"))
                    .collect();
                format!(
                    "[pipeline.kafka]\nbootstrap_servers = {:?}\nconnect_timeout_ms = 2000\n\
                     transactional = {}\n[pipeline.kafka.properties]\n{}",
                    self.kafka(role),
                    self.plot.transactional,
                    properties.concat()
                )
            }
            BrokerKind::Rabbitmq => format!(
                "[pipeline.rabbitmq]\nurl = {:?}\nexchange = {:?}\nheartbeat_secs = {}\nconfirm_timeout_ms = 5000\n",
                self.at(role, Peer::Broker, self.servers.rabbitmq()?.as_str())?,
                exchange,
                HEARTBEAT.as_secs(),
            ),
            BrokerKind::Sqs | BrokerKind::SqsFifo => format!(
                "[pipeline.sqs]\nregion = \"elasticmq\"\nendpoint_url = {:?}\naccess_key_id = \"storm\"\n\
                 secret_access_key = \"storm\"\nrequest_timeout_ms = 4000\n",
                self.at(role, Peer::Broker, &broker.address)?.trim_end_matches('/'),
            ),
            BrokerKind::Http => self.endpoints(role)?,
        };
        Ok(format!(
            "[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {database:?}\n{section}{engine}"
        ))
    }

    /// Returns the section of HTTP endpoints: one for each topic that leads somewhere.
    fn endpoints(&self, role: Role) -> Result<String, Failure> {
        let url = self.at(role, Peer::Broker, &self.stage.broker.address)?;
        let url = url.trim_end_matches('/');
        let sagas = self.plot.saga_topics();
        let endpoint =
            |topic: String| format!("[pipeline.http.endpoints.{topic:?}]\nurl = \"{url}/{topic}\"\n");
        let endpoints = [self.plot.topics().main, sagas.ship, sagas.replies].map(endpoint).concat();
        Ok(format!(
            "[pipeline.http]\nprivate_networks = [\"127.0.0.1\"]\nstopping_statuses = [401]\nconcurrency = 4\n\
             connect_timeout_ms = 1000\nrequest_timeout_ms = 4000\n{endpoints}"
        ))
    }

    fn consumers(&self) -> Result<Vec<(String, ConsumerTask)>, Failure> {
        let [one, other] = self.plot.consumers();
        let mut tasks = Vec::new();
        // An SQS queue, or an endpoint, hands a message to only one reader, so each reader applies
        // it under both names.
        let is_shared = self.plot.pair.broker.has_one_reader();
        let names: &[(&str, Option<&str>)] =
            if is_shared { &[(one, Some(other))] } else { &[(one, None), (other, None)] };
        for (place, (consumer, also)) in names.iter().enumerate() {
            for number in 0..CONSUMERS {
                let name = format!("consumer-{consumer}-{number}");
                let task = ConsumerTask {
                    database: self.database(Role::Consumer)?,
                    broker: self.address(Role::Consumer, &self.plot.topics().main, consumer, number)?,
                    consumer: String::from(*consumer),
                    also: also.map(String::from),
                    batch: if is_shared { number == 1 } else { place == 1 },
                    guarded: self.plot.guarded,
                    journal: self.plot.file(&format!("{name}.journal")),
                };
                tasks.push((name, task));
            }
        }
        Ok(tasks)
    }

    /// Returns the address at which one of a consumer's processes receives, through this role's
    /// wire. With the mock cluster, partitions are assigned in advance. The mock's group
    /// coordinator ends the program (it asserts `member->resp`) when a member repeats its request
    /// to join before the answer, as it does after a fault.
    fn address(
        &self,
        role: Role,
        topic: &str,
        consumer: &str,
        number: usize,
    ) -> Result<BrokerAddress, Failure> {
        let (broker, topic) = (&self.stage.broker, topic.to_owned());
        Ok(match self.plot.pair.broker {
            BrokerKind::Kafka | BrokerKind::MockKafka => BrokerAddress::Kafka {
                servers: self.kafka(role),
                topic,
                group: self.plot.group(consumer),
                partitions: match self.plot.pair.broker {
                    mock @ BrokerKind::MockKafka => (0..mock.partitions())
                        .filter(|partition| usize::from(*partition) % CONSUMERS == number)
                        .collect(),
                    _ => Vec::new(),
                },
            },
            BrokerKind::Rabbitmq => BrokerAddress::Rabbitmq {
                url: self.at(role, Peer::Broker, &broker.address)?,
                queue: broker::queue(self.plot, consumer),
            },
            BrokerKind::Sqs | BrokerKind::SqsFifo => BrokerAddress::Sqs {
                endpoint: self.at(role, Peer::Broker, &broker.address)?.trim_end_matches('/').into(),
                queue: topic,
            },
            BrokerKind::Http => BrokerAddress::Http {
                gateway: broker.address.trim_start_matches("http://").trim_end_matches('/').into(),
                topic,
            },
        })
    }
}
