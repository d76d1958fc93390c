//! An in-process Kafka cluster for the demo and for quick tests: librdkafka's own mock, which
//! speaks the real protocol over loopback sockets.
//!
//! It keeps about 5 MB per partition, checks no sequence numbers and creates no topics by admin
//! request. It proves nothing about durability or de-duplication; those proofs need a real cluster.

mod outage;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

pub use rdkafka::types::{RDKafkaApiKey as ApiKey, RDKafkaRespErr as ResponseError};

use outage::{ErrorQueues, Outage, RENEW_EVERY};

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Command = Box<dyn FnOnce(&mut Served) + Send>;

/// A running mock cluster. It stops when dropped. Its calls block for some microseconds.
#[derive(Debug)]
pub struct Mock {
    commands: SyncSender<Command>,
    bootstrap_servers: String,
}

/// An error of the mock cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MockError {
    /// It could not be started, or refused a command.
    #[error("the mock cluster refuses: {reason}")]
    Refused {
        /// The cause, in librdkafka's words.
        reason: String,
        /// The client library's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its thread has ended.
    #[error("the mock cluster has stopped")]
    Stopped,
}

impl Mock {
    /// Starts a cluster of `brokers` brokers, which takes about 5 ms.
    ///
    /// # Errors
    /// [`MockError`] when librdkafka cannot open its sockets.
    pub fn start(brokers: u8) -> Result<Self, MockError> {
        let (commands, receiver) = sync_channel(1);
        let (started, start) = channel();
        thread::Builder::new()
            .name(String::from("kafka-mock"))
            // The cluster cannot move to another thread.
            .spawn(move || match MockCluster::new(i32::from(brokers.max(1))) {
                Ok(cluster) => {
                    if started.send(Ok(cluster.bootstrap_servers())).is_ok() {
                        Served { cluster, outage: Outage::default() }.serve(&receiver);
                    }
                }
                // The caller is waiting for this answer.
                Err(error) => drop(started.send(Err(refused(error)))),
            })
            .map_err(|error| MockError::Refused { reason: error.to_string(), source: error.into() })?;
        let bootstrap_servers = start.recv().map_err(|_| MockError::Stopped)??;
        Ok(Self { commands, bootstrap_servers })
    }

    /// Returns `host:port` of its brokers.
    #[must_use]
    pub fn bootstrap_servers(&self) -> Vec<String> {
        self.bootstrap_servers.split(',').map(str::to_owned).collect()
    }

    /// Creates a topic with one replica.
    ///
    /// # Errors
    /// [`MockError`], for example when it exists.
    pub fn create_topic(&self, topic: &str, partitions: u16) -> Result<(), MockError> {
        let topic = topic.to_owned();
        self.run(move |served| served.cluster.create_topic(&topic, i32::from(partitions), 1))
    }

    /// Begins an outage of the whole cluster: until [`up`](Self::up) it closes every connection at
    /// its first request. A fetch that it has already accepted is still answered, within the
    /// client's `fetch.wait.max.ms`.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn down(&self) -> Result<(), MockError> {
        self.run(|served| {
            served.outage.begin(&served.cluster);
            Ok(())
        })
    }

    /// Ends the outage. Drops errors of [`request_errors`](Self::request_errors) that have not been
    /// returned yet.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn up(&self) -> Result<(), MockError> {
        self.run(|served| {
            served.outage.end(&served.cluster);
            Ok(())
        })
    }

    /// Makes a broker the leader of a partition; `None` leaves it without a leader.
    ///
    /// # Errors
    /// [`MockError`] when there is no such topic, partition or broker.
    pub fn lead(&self, topic: &str, partition: u16, broker: Option<u8>) -> Result<(), MockError> {
        let topic = topic.to_owned();
        self.run(move |served| {
            served.cluster.partition_leader(&topic, partition.into(), broker.map(i32::from))
        })
    }

    /// Makes a broker the coordinator of a producer's transactions.
    ///
    /// # Errors
    /// [`MockError`] when there is no such broker.
    pub fn coordinate(&self, transactional_id: &str, broker: u8) -> Result<(), MockError> {
        let id = transactional_id.to_owned();
        self.run(move |served| {
            served.cluster.coordinator(MockCoordinator::Transaction(id), i32::from(broker))
        })
    }

    /// Makes a broker the coordinator of a consumer group.
    ///
    /// # Errors
    /// [`MockError`] when there is no such broker.
    pub fn coordinate_group(&self, group: &str, broker: u8) -> Result<(), MockError> {
        let group = group.to_owned();
        self.run(move |served| served.cluster.coordinator(MockCoordinator::Group(group), i32::from(broker)))
    }

    /// Delays each answer of one broker by this time from now on; zero ends the delay. Requests
    /// already received keep their delay, and no later request on the same connection is answered
    /// before them. Brokers are numbered from 1.
    ///
    /// # Errors
    /// [`MockError`] when there is no such broker.
    pub fn answer_late(&self, broker: u8, by: Duration) -> Result<(), MockError> {
        self.run(move |served| served.cluster.broker_round_trip_time(broker.into(), by))
    }

    /// Drops errors of [`request_errors`](Self::request_errors) that have not been returned yet.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn forget_errors(&self, api: RDKafkaApiKey) -> Result<(), MockError> {
        self.run(move |served| {
            served.outage.forget(&served.cluster, api);
            Ok(())
        })
    }

    /// Answers the next requests of this kind with these errors, one each.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn request_errors(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) -> Result<(), MockError> {
        let errors = errors.to_vec();
        self.run(move |served| {
            served.cluster.push(api, &errors);
            Ok(())
        })
    }

    fn run(
        &self,
        command: impl FnOnce(&mut Served) -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<(), MockError> {
        let (answer, answered) = channel();
        let command: Command = Box::new(move |served| {
            // The caller waits below.
            let _ = answer.send(command(served).map_err(refused));
        });
        self.commands.send(command).map_err(|_| MockError::Stopped)?;
        answered.recv().map_err(|_| MockError::Stopped)?
    }
}

/// The cluster, on its thread.
struct Served {
    cluster: Cluster,
    outage: Outage,
}

impl Served {
    /// Runs commands until no sender is left.
    fn serve(mut self, commands: &Receiver<Command>) {
        loop {
            let patience = if self.outage.lasts() { RENEW_EVERY } else { Duration::MAX };
            match commands.recv_timeout(patience) {
                Ok(command) => command(&mut self),
                Err(RecvTimeoutError::Timeout) => self.outage.begin(&self.cluster),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

impl ErrorQueues for Cluster {
    fn push(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.request_errors(api, errors);
    }

    fn clear(&self, api: RDKafkaApiKey) {
        self.clear_request_errors(api);
    }
}

fn refused(error: KafkaError) -> MockError {
    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
    MockError::Refused { reason: code.to_string(), source: error.into() }
}
