//! A database and a broker.

use std::fmt;

/// The database of outbox and inbox.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseKind {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// The broker that carries the messages.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum BrokerKind {
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    Rabbitmq,
    /// SQS, standard queues.
    Sqs,
    /// SQS, FIFO queues.
    SqsFifo,
    /// Kafka inside the storm's process. It persists nothing, but the test can choose its errors.
    MockKafka,
    /// HTTP: the consumers are receivers behind a load balancer inside the storm's process, which
    /// can answer instead of them.
    Http,
}

impl BrokerKind {
    /// Returns whether the broker keeps the order of a key.
    #[must_use]
    pub fn keeps_order(self) -> bool {
        self != Self::Sqs
    }

    /// Returns the number of partitions of a topic. Keys must spread over the partitions and also
    /// share them. The mock cluster keeps some 5 MiB of each partition and drops the rest, so half
    /// an hour needs more partitions.
    #[must_use]
    pub fn partitions(self) -> u16 {
        if self == Self::MockKafka { 24 } else { 6 }
    }

    /// Returns whether the broker is Kafka, real or mock.
    #[must_use]
    pub fn is_kafka(self) -> bool {
        matches!(self, Self::Kafka | Self::MockKafka)
    }

    /// Returns whether a message goes to one reader, which applies it under both names. Nothing is
    /// left to read at the end.
    #[must_use]
    pub fn has_one_reader(self) -> bool {
        self.is_sqs() || self == Self::Http
    }

    /// Returns whether the broker is SQS, with either kind of queues.
    #[must_use]
    pub fn is_sqs(self) -> bool {
        matches!(self, Self::Sqs | Self::SqsFifo)
    }
}

/// The database and the broker of one storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Pair {
    /// The database of outbox and inbox.
    pub database: DatabaseKind,
    /// The broker that carries the messages.
    pub broker: BrokerKind,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = match self.database {
            DatabaseKind::Postgres => "postgres",
            DatabaseKind::Sqlite => "sqlite",
        };
        let broker = match self.broker {
            BrokerKind::Kafka => "kafka",
            BrokerKind::Rabbitmq => "rabbitmq",
            BrokerKind::Sqs => "sqs",
            BrokerKind::SqsFifo => "sqs-fifo",
            BrokerKind::MockKafka => "mock-kafka",
            BrokerKind::Http => "http",
        };
        f.pad(&format!("{database} × {broker}"))
    }
}

impl Pair {
    /// Mixes the pair into a seed, so that each pair gets a different one.
    #[must_use]
    pub fn mix(self, seed: u64) -> u64 {
        let number = (self.database as u64) << 8 | self.broker as u64;
        seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the name of the pair as a part of a file name.
    #[must_use]
    pub fn slug(self) -> String {
        self.to_string().replace(" × ", "-")
    }
}
