//! Starting and stopping of servers, through the task runner that started them.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::Command;

use crate::Failure;
use crate::pair::{BrokerKind, DatabaseKind, Pair};

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// PostgreSQL.
    Postgres,
    /// `PgBouncer`, before PostgreSQL. A fault starts it.
    Pgbouncer,
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    Rabbitmq,
    /// ElasticMQ, which speaks SQS.
    Sqs,
}

impl Service {
    /// The servers that a pair needs.
    #[must_use]
    pub fn of(pair: Pair) -> Vec<Self> {
        let database = (pair.database == DatabaseKind::Postgres).then_some(Self::Postgres);
        let broker = match pair.broker {
            BrokerKind::Kafka => Some(Self::Kafka),
            BrokerKind::Rabbitmq => Some(Self::Rabbitmq),
            BrokerKind::Sqs | BrokerKind::SqsFifo => Some(Self::Sqs),
            BrokerKind::MockKafka => None,
        };
        database.into_iter().chain(broker).collect()
    }

    /// As the task runner names it.
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

/// The private instances of this storm. The environment of this process says where they are.
#[derive(Debug, Clone)]
pub struct Services {
    xtask: PathBuf,
}

impl Services {
    /// Instances that this program manages.
    #[must_use]
    pub fn new(xtask: PathBuf) -> Self {
        Self { xtask }
    }

    /// Stops a server: in order, or at once, as in a crash. One that is not running is fine.
    ///
    /// # Errors
    /// It goes on, and why.
    pub async fn stop(&self, service: Service, immediate: bool) -> Result<(), Failure> {
        let flags: &[&str] = if immediate { &["--immediate"] } else { &[] };
        self.run("stop", service, flags).await
    }

    /// Starts a server and waits until it answers. One that is running is fine.
    ///
    /// # Errors
    /// It does not answer, and why.
    pub async fn start(&self, service: Service) -> Result<(), Failure> {
        self.run("start", service, &[]).await
    }

    async fn run(&self, verb: &str, service: Service, flags: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new(&self.xtask);
        command.args(["services", verb, service.as_str()]).args(flags).stdin(Stdio::null());
        let output = command.output().await?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("cannot {verb} {}: {}", service.as_str(), errors.trim()).into())
    }
}
