//! Starting and stopping of servers, through the task runner that started them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::process::Command;

use crate::Failure;
use crate::pair::{BrokerKind, DatabaseKind, Pair};

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// PostgreSQL.
    Postgres,
    /// `PgBouncer` in front of PostgreSQL. A fault starts it.
    Pgbouncer,
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    Rabbitmq,
    /// ElasticMQ, which speaks SQS.
    Sqs,
}

impl Service {
    /// Returns the servers that a pair needs.
    #[must_use]
    pub fn of(pair: Pair) -> Vec<Self> {
        let database = (pair.database == DatabaseKind::Postgres).then_some(Self::Postgres);
        let broker = match pair.broker {
            BrokerKind::Kafka => Some(Self::Kafka),
            BrokerKind::Rabbitmq => Some(Self::Rabbitmq),
            BrokerKind::Sqs | BrokerKind::SqsFifo => Some(Self::Sqs),
            BrokerKind::MockKafka | BrokerKind::Http => None,
        };
        database.into_iter().chain(broker).collect()
    }

    /// Returns the name of the server for the task runner.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Pgbouncer => "pgbouncer",
            Self::Kafka => "kafka",
            Self::Rabbitmq => "rabbitmq",
            Self::Sqs => "sqs",
        }
    }
}

/// The private instances of this storm. This process's environment holds their addresses.
#[derive(Debug, Clone)]
pub struct Services {
    xtask: PathBuf,
    /// Variables in addition to those of this process.
    environment: BTreeMap<&'static str, String>,
    others: Arc<Mutex<Vec<Services>>>,
}

/// Variable with the address of PostgreSQL. If it is set, the task runner treats the server as
/// foreign and does not stop it.
const POSTGRES: &str = "OUTBOX_POSTGRES_URL";
const POSTGRES_PORT: &str = "OUTBOX_POSTGRES_PORT";
const FOLDER: &str = "OUTBOX_SERVICES_DIR";

impl Services {
    /// Creates a handle to the instances that this task runner manages.
    #[must_use]
    pub fn new(xtask: PathBuf) -> Self {
        Self { xtask, environment: BTreeMap::new(), others: Arc::default() }
    }

    /// Adds one more PostgreSQL with this folder and port. It exists until
    /// [`remove_others`](Self::remove_others).
    #[must_use]
    pub fn another_postgres(&self, folder: &Path, port: u16) -> Self {
        let environment =
            BTreeMap::from([(FOLDER, folder.display().to_string()), (POSTGRES_PORT, port.to_string())]);
        let other = Self { environment, ..Self::new(self.xtask.clone()) };
        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(other.clone());
        other
    }

    /// Stops every other PostgreSQL and deletes its folder.
    ///
    /// # Errors
    /// A server cannot be stopped. The text says why.
    pub async fn remove_others(&self) -> Result<(), Failure> {
        let others = std::mem::take(&mut *self.others.lock().unwrap_or_else(PoisonError::into_inner));
        for other in others {
            other.run(&["down", "--purge", "--only", Service::Postgres.as_str()]).await?;
            if let Some(folder) = other.environment.get(FOLDER) {
                std::fs::remove_dir_all(folder)?;
            }
        }
        Ok(())
    }

    /// Stops a server, in an orderly way or immediately, as in a crash. Does nothing if it is not
    /// running.
    ///
    /// # Errors
    /// The server cannot be stopped. The text says why.
    pub async fn stop(&self, service: Service, immediate: bool) -> Result<(), Failure> {
        let how = if immediate { Some("--immediate") } else { None };
        let arguments: Vec<&str> = ["stop", service.as_str()].into_iter().chain(how).collect();
        self.run(&arguments).await
    }

    /// Starts a server and waits until it answers. Does nothing if it is running.
    ///
    /// # Errors
    /// The server does not answer. The text says why.
    pub async fn start(&self, service: Service) -> Result<(), Failure> {
        self.run(&["start", service.as_str()]).await
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new(&self.xtask);
        command.arg("services").args(arguments).stdin(Stdio::null());
        if !self.environment.is_empty() {
            command.env_remove(POSTGRES).envs(&self.environment);
        }
        let output = command.output().await?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("cannot {}: {}", arguments.join(" "), errors.trim()).into())
    }
}
