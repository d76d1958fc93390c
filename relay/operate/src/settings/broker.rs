//! The broker to which a pipeline publishes.

use std::sync::Arc;

use brokers::InvalidSetting;
#[cfg(feature = "http")]
use brokers::http;
#[cfg(feature = "kafka")]
use brokers::kafka;
#[cfg(feature = "rabbitmq")]
use brokers::rabbitmq;
#[cfg(feature = "sqs")]
use brokers::sqs;
use message::{Connector, PayloadEncoding, SizeLimit};

use engine::Publishing;

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
    /// HTTP endpoints.
    #[cfg(feature = "http")]
    Http(Box<http::Config>),
    /// A connector that a service gave to its relay; its settings are unknown here.
    Given {
        /// How messages are published.
        publishing: Publishing,
        /// The largest message that it takes.
        size_limit: SizeLimit,
    },
}

impl Broker {
    /// Creates a connector with these settings. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the setting within the pipeline, its value and the accepted values,
    /// or reports that a service [lent its transactions](Self::lends_transactions).
    pub fn connector(&self) -> Result<Arc<dyn Connector>, InvalidSetting> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => Arc::new(kafka::Connector::new(config.as_ref().clone())?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(config) => Arc::new(rabbitmq::Connector::new(config)?),
            #[cfg(feature = "sqs")]
            Self::Sqs(config) => Arc::new(sqs::Connector::new(config)?),
            #[cfg(feature = "http")]
            Self::Http(config) => Arc::new(http::Connector::new(config)?),
            Self::Given { publishing: Publishing::Plain(connector), .. } => Arc::clone(connector),
            // A second session would fence the relay, and nothing would commit its messages.
            Self::Given { .. } => {
                return Err(InvalidSetting {
                    setting: String::from("broker"),
                    problem: String::from(
                        "belongs to a running relay, whose transactions only that relay can use; use `relay \
                         replay` with a configuration",
                    ),
                });
            }
        })
    }

    /// Returns how messages are published with these settings. Does not connect yet.
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
            Self::Given { publishing, .. } => Ok(publishing.clone()),
            #[allow(unreachable_patterns, reason = "the other brokers may not be built in")]
            _ => Ok(Publishing::Plain(self.connector()?)),
        }
    }

    /// Returns whether messages are published in transactions of the broker.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.transactional,
            Self::Given { publishing, .. } => matches!(publishing, Publishing::InTransactions(_)),
            #[allow(unreachable_patterns, reason = "the other brokers may not be built in")]
            _ => false,
        }
    }

    /// Returns whether a service lent the transactions of its relay, which only that relay can use.
    #[must_use]
    pub fn lends_transactions(&self) -> bool {
        matches!(self, Self::Given { publishing, .. } if !matches!(publishing, Publishing::Plain(_)))
    }

    /// Returns the encoding of payloads; that of a given connector counts as raw.
    #[must_use]
    pub fn encoding(&self) -> PayloadEncoding {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => PayloadEncoding::Raw,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq(_) => PayloadEncoding::Raw,
            #[cfg(feature = "sqs")]
            Self::Sqs(_) => PayloadEncoding::Base64,
            // In structured mode, a payload that is not JSON is base64.
            #[cfg(feature = "http")]
            Self::Http(config) => match config.mode {
                http::Mode::Binary => PayloadEncoding::Raw,
                http::Mode::Structured => PayloadEncoding::Base64,
            },
            Self::Given { .. } => PayloadEncoding::Raw,
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
            #[cfg(feature = "http")]
            Self::Http(config) => {
                SizeLimit { destination: "HTTP (http.message_bytes_max)", ..config.size_limit() }
            }
            Self::Given { size_limit, .. } => *size_limit,
        }
    }
}

#[cfg(all(test, feature = "kafka"))]
mod tests {
    use super::*;

    /// Goal: no other code publishes through the transactions of a running relay: this would fence
    /// off the relay, and its own messages would never be committed. Oracle: the connector is
    /// refused.
    #[test]
    fn lent_transactions_have_no_connector() {
        let config = || kafka::Config::new(["127.0.0.1:1"]).allow_plaintext(true);
        let size_limit = config().size_limit();
        let plain: Arc<dyn Connector> = Arc::new(kafka::Connector::new(config()).unwrap());
        let transactions = Arc::new(kafka::TransactionalConnector::new(config()).unwrap());
        let plain = Broker::Given { publishing: Publishing::Plain(plain), size_limit };
        let lent = Broker::Given { publishing: Publishing::InTransactions(transactions), size_limit };
        assert!(plain.connector().is_ok() && !plain.lends_transactions());
        assert!(lent.lends_transactions());
        let refused = lent.connector().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("relay replay"), "{refused}");
        assert!(lent.publishing().is_ok(), "the relay itself uses these transactions");
    }
}
