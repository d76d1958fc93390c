//! The broker to which a pipeline publishes.

use std::sync::Arc;

use brokers::InvalidSetting;
#[cfg(feature = "kafka")]
use brokers::kafka;
#[cfg(feature = "rabbitmq")]
use brokers::rabbitmq;
#[cfg(feature = "sqs")]
use brokers::sqs;
use message::chunk::Encoding;
use message::{Connector, SizeLimit};

use engine::Publishing;

/// The minimum size of a message: the room for its envelope.
pub(crate) const MESSAGE_BYTES_MIN: usize = 1_000;

/// The broker to which a pipeline publishes, with its settings.
#[derive(Debug, Clone)]
pub enum Broker {
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Box<kafka::Config>),
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(Box<rabbitmq::Config>),
    /// Amazon SQS.
    #[cfg(feature = "sqs")]
    Sqs(Box<sqs::Config>),
}

impl Broker {
    /// Creates a connector with these settings. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the setting within the pipeline, its value and what is accepted.
    pub fn connector(&self) -> Result<Arc<dyn Connector>, InvalidSetting> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => Arc::new(kafka::Connector::new(config.as_ref().clone())?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) => Arc::new(rabbitmq::Connector::new(config)?),
            #[cfg(feature = "sqs")]
            Self::Sqs(config) => Arc::new(sqs::Connector::new(config)?),
        })
    }

    /// Returns how messages leave with these settings. Does not connect yet.
    ///
    /// # Errors
    /// As [`connector`](Self::connector).
    pub fn publishing(&self) -> Result<Publishing, InvalidSetting> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) if self.is_transactional() => {
                let connector = kafka::TransactionalConnector::new(config.as_ref().clone())?;
                Ok(Publishing::InTransactions(Arc::new(connector)))
            }
            _ => Ok(Publishing::Plain(self.connector()?)),
        }
    }

    /// Returns whether messages leave in transactions of the broker.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.transactional,
            #[allow(unreachable_patterns, reason = "the other brokers may not be built in")]
            _ => false,
        }
    }

    /// Checks every setting that can be checked without the broker and without the files that
    /// settings name.
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        self.connector()?;
        match self {
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) if config.payload_bytes_max < MESSAGE_BYTES_MIN => {
                let bytes = config.payload_bytes_max;
                let problem = format!(
                    "is {bytes}; the relay needs at least {MESSAGE_BYTES_MIN}, the room for an envelope"
                );
                Err(InvalidSetting { setting: String::from("rabbitmq.payload_bytes_max"), problem })
            }
            _ => Ok(()),
        }
    }

    /// Opens the files that the settings name. At a start they may be missing: each connection
    /// reads them again.
    pub(crate) fn check_files(&self) -> Result<(), InvalidSetting> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.check(),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) => config.tls.as_ref().map_or(Ok(()), |tls| tls.check("rabbitmq.tls")),
            #[cfg(feature = "sqs")]
            Self::Sqs(config) => config.tls.as_ref().map_or(Ok(()), |tls| tls.check("sqs.tls")),
        }
    }

    /// Returns the encoding of payloads.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => Encoding::Raw,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(_) => Encoding::Raw,
            #[cfg(feature = "sqs")]
            Self::Sqs(_) => Encoding::Base64,
        }
    }

    /// Returns the configured maximum size of a message, with the name of the setting.
    #[must_use]
    pub fn size_limit(&self) -> SizeLimit {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => {
                SizeLimit { destination: "Kafka (kafka.message_bytes_max)", ..config.size_limit() }
            }
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) => {
                SizeLimit { destination: "RabbitMQ (rabbitmq.payload_bytes_max)", ..config.size_limit() }
            }
            #[cfg(feature = "sqs")]
            Self::Sqs(config) => {
                SizeLimit { destination: "SQS (sqs.message_bytes_max)", ..config.size_limit() }
            }
        }
    }
}

/// The section of a broker that this program was built without. Reading it fails, so no value
/// exists.
#[cfg(not(all(feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
#[derive(Debug, Clone)]
pub(crate) enum NotBuilt {}

#[cfg(not(all(feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
impl<'de> serde::Deserialize<'de> for NotBuilt {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        let problem = "this relay was built without this broker; build it with the feature of its name";
        Err(serde::de::Error::custom(problem))
    }
}

#[cfg(not(all(feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
impl schemars::JsonSchema for NotBuilt {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NotBuilt".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        false.into()
    }
}
