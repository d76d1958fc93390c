//! A Kafka cluster inside the process, for the demo and for quick tests: librdkafka's own mock, which speaks
//! the real protocol over loopback sockets.
//!
//! It keeps about 5 MB per partition, checks no sequence numbers and creates no topics by admin request: it
//! proves nothing about durability or de-duplication. Those proofs need a real cluster.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::net::TcpSocket;

pub use rdkafka::types::{RDKafkaApiKey as ApiKey, RDKafkaRespErr as ResponseError};

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Command = Box<dyn FnOnce(&Cluster) + Send>;

/// A running mock cluster; it stops when this is dropped. The calls block for some microseconds.
#[derive(Debug)]
pub struct Mock {
    commands: SyncSender<Command>,
    bootstrap_servers: String,
    kept: KeptPorts,
}

/// The mock cluster did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MockError {
    /// It could not be started, or refused a command.
    #[error("the mock cluster refuses: {reason}")]
    Refused {
        /// Its own words.
        reason: String,
        /// The client library's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its thread is gone.
    #[error("the mock cluster has stopped")]
    Stopped,
}

impl Mock {
    /// Starts a cluster of so many brokers, about 5 ms.
    ///
    /// # Errors
    /// [`MockError`] when librdkafka cannot open its sockets.
    pub fn start(brokers: u8) -> Result<Self, MockError> {
        let (commands, receiver) = sync_channel(1);
        let (started, start) = channel();
        thread::Builder::new()
            .name(String::from("kafka-mock"))
            // The cluster cannot change its thread.
            .spawn(move || match MockCluster::new(i32::from(brokers.max(1))) {
                Ok(cluster) => {
                    if started.send(Ok(cluster.bootstrap_servers())).is_ok() {
                        serve(&cluster, &receiver);
                    }
                }
                // The caller is waiting for this answer.
                Err(error) => drop(started.send(Err(refused(error)))),
            })
            .map_err(|error| MockError::Refused { reason: error.to_string(), source: error.into() })?;
        let bootstrap_servers = start.recv().map_err(|_| MockError::Stopped)??;
        Ok(Self { commands, bootstrap_servers, kept: KeptPorts::default() })
    }

    /// `host:port` of its brokers.
    #[must_use]
    pub fn bootstrap_servers(&self) -> Vec<String> {
        self.bootstrap_servers.split(',').map(str::to_owned).collect()
    }

    /// Makes a topic with one replica.
    ///
    /// # Errors
    /// [`MockError`], for example because it exists.
    pub fn create_topic(&self, topic: &str, partitions: u16) -> Result<(), MockError> {
        let topic = topic.to_owned();
        self.run(move |cluster| cluster.create_topic(&topic, i32::from(partitions), 1))
    }

    /// Disconnects every client and accepts no connection until [`up`](Self::up).
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn down(&self) -> Result<(), MockError> {
        self.run(|cluster| cluster.broker_down(ALL))?;
        (1..).zip(self.ports()).for_each(|(broker, port)| self.kept.keep(broker, port));
        Ok(())
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn up(&self) -> Result<(), MockError> {
        self.kept.release_all();
        self.run(|cluster| cluster.broker_up(ALL))
    }

    /// Disconnects the clients of one broker and accepts no connection to it until [`bring_up`](Self::bring_up). Brokers
    /// are numbered from 1.
    ///
    /// # Errors
    /// [`MockError`]: there is no such broker.
    pub fn take_down(&self, broker: u8) -> Result<(), MockError> {
        self.run(move |cluster| cluster.broker_down(broker.into()))?;
        if let Some(port) = self.ports().nth(usize::from(broker).saturating_sub(1)) {
            self.kept.keep(broker, port);
        }
        Ok(())
    }

    /// One broker accepts connections again.
    ///
    /// # Errors
    /// [`MockError`]: there is no such broker.
    pub fn bring_up(&self, broker: u8) -> Result<(), MockError> {
        self.kept.release(broker);
        self.run(move |cluster| cluster.broker_up(broker.into()))
    }

    /// Makes a broker the leader of a partition; nothing leaves it without one.
    ///
    /// # Errors
    /// [`MockError`]: there is no such topic, partition or broker.
    pub fn lead(&self, topic: &str, partition: u16, broker: Option<u8>) -> Result<(), MockError> {
        let topic = topic.to_owned();
        self.run(move |cluster| cluster.partition_leader(&topic, partition.into(), broker.map(i32::from)))
    }

    /// Forgets the errors that [`request_errors`](Self::request_errors) has not answered with yet.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn forget_errors(&self, api: RDKafkaApiKey) -> Result<(), MockError> {
        self.run(move |cluster| {
            cluster.clear_request_errors(api);
            Ok(())
        })
    }

    /// Answers the next requests of this kind with these errors, one each.
    ///
    /// # Errors
    /// [`MockError::Stopped`].
    pub fn request_errors(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) -> Result<(), MockError> {
        let errors = errors.to_vec();
        self.run(move |cluster| {
            cluster.request_errors(api, &errors);
            Ok(())
        })
    }

    /// The ports of its brokers, in the order of their numbers.
    fn ports(&self) -> impl Iterator<Item = u16> {
        self.bootstrap_servers.split(',').filter_map(|server| server.rsplit_once(':')?.1.parse().ok())
    }

    fn run(
        &self,
        command: impl FnOnce(&Cluster) -> Result<(), KafkaError> + Send + 'static,
    ) -> Result<(), MockError> {
        let (answer, answered) = channel();
        let command: Command = Box::new(move |cluster| {
            // The caller waits below.
            let _ = answer.send(command(cluster).map_err(refused));
        });
        self.commands.send(command).map_err(|_| MockError::Stopped)?;
        answered.recv().map_err(|_| MockError::Stopped)?
    }
}

/// Ports of brokers that are away: bound, and refusing connections. A port that is free can become the near end of any
/// connection of this machine, and then its broker cannot come back: the mock ends the process (librdkafka 2.12.1,
/// `Failed to-create mock broker listener`; seen in a storm beside three others).
#[derive(Debug, Default)]
struct KeptPorts(Mutex<BTreeMap<u8, TcpSocket>>);

impl KeptPorts {
    /// Keeps a port; one that somebody has taken already stays theirs.
    fn keep(&self, broker: u8, port: u16) {
        let bind = || {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
            Ok::<_, std::io::Error>(socket)
        };
        match bind() {
            Ok(socket) => drop(self.sockets().insert(broker, socket)),
            Err(error) => tracing::debug!(broker, port, %error, "the port of a mock broker is not kept"),
        }
    }

    fn release(&self, broker: u8) {
        self.sockets().remove(&broker);
    }

    fn release_all(&self) {
        self.sockets().clear();
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, BTreeMap<u8, TcpSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All brokers of the cluster.
const ALL: i32 = -1;

fn serve(cluster: &Cluster, commands: &Receiver<Command>) {
    for command in commands {
        command(cluster);
    }
}

fn refused(error: KafkaError) -> MockError {
    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
    MockError::Refused { reason: code.to_string(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn nobody_else_gets_the_port_of_a_broker_that_is_away() {
        let mock = Mock::start(2).unwrap();
        let places: Vec<_> = mock.ports().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
        let open = || places.iter().map(|place| TcpStream::connect(place).is_ok()).collect::<Vec<_>>();
        // As the near end of a connection gets its port: without SO_REUSEADDR.
        let is_free = |place| TcpSocket::new_v4().and_then(|socket| socket.bind(place)).is_ok();
        mock.take_down(2).unwrap();
        assert!(!is_free(places[1]));
        assert_eq!(open(), [true, false]);
        mock.bring_up(2).unwrap();
        assert_eq!(open(), [true, true]);
        mock.down().unwrap();
        assert_eq!(open(), [false, false]);
        mock.up().unwrap();
        assert_eq!(open(), [true, true]);
    }
}
