//! Checks of a pipeline's broker, and the section of a broker that this program lacks.

use brokers::InvalidSetting;
use operate::Broker;

/// The minimum size of a message: the room for its envelope.
pub(crate) const MESSAGE_BYTES_MIN: usize = 1_000;

/// Checks every setting that can be checked without the broker and without the files that settings
/// name.
pub(crate) fn check(broker: &Broker) -> Result<(), InvalidSetting> {
    broker.connector()?;
    match broker {
        #[cfg(feature = "rabbitmq")]
        Broker::Rabbitmq(config) if config.payload_bytes_max < MESSAGE_BYTES_MIN => {
            let bytes = config.payload_bytes_max;
            let problem =
                format!("is {bytes}; the relay needs at least {MESSAGE_BYTES_MIN} for the envelope");
            Err(InvalidSetting { setting: String::from("rabbitmq.payload_bytes_max"), problem })
        }
        _ => Ok(()),
    }
}

/// Opens the files that the settings name. At a start they may be missing: each connection reads
/// them again.
pub(crate) fn check_files(broker: &Broker) -> Result<(), InvalidSetting> {
    match broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka(config) => config.check(),
        #[cfg(feature = "rabbitmq")]
        Broker::Rabbitmq(config) => config.check_files(),
        #[cfg(feature = "sqs")]
        Broker::Sqs(config) => config.tls.as_ref().map_or(Ok(()), |tls| tls.check("sqs.tls")),
        #[cfg(feature = "http")]
        Broker::Http(config) => config.check_files(),
        // Only a service provides one, never a configuration.
        Broker::Given { .. } => Ok(()),
    }
}

/// The section of a broker that this program was built without. Reading it fails, so no value
/// exists.
#[cfg(not(all(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
#[derive(Debug, Clone)]
pub(crate) enum NotBuilt {}

#[cfg(not(all(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
impl<'de> serde::Deserialize<'de> for NotBuilt {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        let problem = "this relay was built without this broker; build it with the feature of the same name";
        Err(serde::de::Error::custom(problem))
    }
}

#[cfg(not(all(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
impl schemars::JsonSchema for NotBuilt {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NotBuilt".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        false.into()
    }
}
