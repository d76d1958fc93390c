//! The components that tests run against, and whether this run has them.

use std::fmt;

/// A component that tests run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// PostgreSQL.
    Postgres,
    /// SQLite, in the process.
    Sqlite,
    /// The in-memory broker.
    Memory,
    /// librdkafka's mock cluster, in the process.
    KafkaMock,
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    Rabbitmq,
    /// A standard queue of SQS.
    Sqs,
    /// A FIFO queue of SQS.
    SqsFifo,
    /// Services of `cargo xtask services`, which a test may stop and crash.
    Xtask,
    /// The authority of the services' certificates, and a client's certificate.
    TlsFiles,
    /// PostgreSQL with TLS.
    PostgresTls,
    /// Apache Kafka with TLS, for clients with a certificate.
    KafkaTls,
    /// Apache Kafka with TLS, for users with a password.
    KafkaSasl,
    /// RabbitMQ with TLS.
    RabbitmqTls,
    /// The management API of RabbitMQ.
    RabbitmqManagement,
    /// The jars of Debezium's connector and of Kafka Connect.
    Debezium,
}

/// The backends by the words of [`cases!`](crate::cases!), which are those of [`Backend::as_str`].
pub mod words {
    pub use super::Backend::{
        Debezium as debezium, Kafka as kafka, KafkaMock as kafka_mock, KafkaSasl as kafka_sasl,
        KafkaTls as kafka_tls, Memory as memory, Postgres as postgres, PostgresTls as postgres_tls,
        Rabbitmq as rabbitmq, RabbitmqManagement as rabbitmq_management, RabbitmqTls as rabbitmq_tls,
        Sqlite as sqlite, Sqs as sqs, SqsFifo as sqs_fifo, TlsFiles as tls_files, Xtask as xtask,
    };
}

impl Backend {
    /// Returns the lower-case word in the names of tests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
            Self::KafkaMock => "kafka-mock",
            Self::Kafka => "kafka",
            Self::Rabbitmq => "rabbitmq",
            Self::Sqs => "sqs",
            Self::SqsFifo => "sqs-fifo",
            Self::Xtask => "xtask",
            Self::TlsFiles => "tls-files",
            Self::PostgresTls => "postgres-tls",
            Self::KafkaTls => "kafka-tls",
            Self::KafkaSasl => "kafka-sasl",
            Self::RabbitmqTls => "rabbitmq-tls",
            Self::RabbitmqManagement => "rabbitmq-management",
            Self::Debezium => "debezium",
        }
    }

    /// Returns whether it is a broker that every suite can open.
    #[must_use]
    pub fn is_broker(self) -> bool {
        use Backend::{Kafka, KafkaMock, Memory, Rabbitmq, Sqs, SqsFifo};
        matches!(self, Memory | KafkaMock | Kafka | Rabbitmq | Sqs | SqsFifo)
    }

    /// Returns the variable that holds its address; none for a component inside the process.
    #[must_use]
    pub fn variable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite | Self::Memory | Self::KafkaMock => None,
            Self::Postgres => Some("OUTBOX_POSTGRES_URL"),
            Self::Kafka => Some("OUTBOX_KAFKA_BROKERS"),
            Self::Rabbitmq => Some("OUTBOX_RABBITMQ_URL"),
            Self::Sqs | Self::SqsFifo => Some("OUTBOX_SQS_ENDPOINT"),
            Self::Xtask => Some("OUTBOX_XTASK"),
            Self::TlsFiles => Some("OUTBOX_TLS_DIR"),
            Self::PostgresTls => Some("OUTBOX_POSTGRES_TLS_URL"),
            Self::KafkaTls => Some("OUTBOX_KAFKA_TLS_BROKERS"),
            Self::KafkaSasl => Some("OUTBOX_KAFKA_SASL_BROKERS"),
            Self::RabbitmqTls => Some("OUTBOX_RABBITMQ_TLS_URL"),
            Self::RabbitmqManagement => Some("OUTBOX_RABBITMQ_MANAGEMENT_URL"),
            Self::Debezium => Some(harness::connect::JARS_VARIABLE),
        }
    }

    /// Returns its address; empty for a component inside the process.
    ///
    /// # Errors
    /// The variable is not set; the text names it.
    pub fn address(self) -> Result<String, String> {
        let Some(variable) = self.variable() else { return Ok(String::new()) };
        match std::env::var(variable) {
            Ok(address) if !address.is_empty() => Ok(address),
            _ => Err(format!("{self}: {variable} is not set")),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns why the first missing backend of `needs` is missing; none if this run has them all.
#[must_use]
pub fn missing(needs: &[Backend]) -> Option<String> {
    needs.iter().find_map(|backend| backend.address().err())
}

/// Returns whether a missing backend is a failure (`OUTBOX_REQUIRE=all`) instead of an ignored
/// test.
#[must_use]
pub fn all_are_required() -> bool {
    std::env::var("OUTBOX_REQUIRE").is_ok_and(|required| required == "all")
}
