//! Publishers and subscriptions for Kafka, RabbitMQ, SQS and memory, and a publisher for HTTP
//! endpoints: one feature and one folder for each. `kafka` alone has neither TLS nor SCRAM nor
//! tokens; these need OpenSSL and come with `kafka-tls`.
//!
//! Every broker's folder has these files, so that a change goes to the same place in each. `memory`
//! has only what it needs: no settings, no form on the wire, and no faults to classify. `http` has
//! no subscription and nothing to create. Further files serve the publisher or the subscription,
//! and say so in their first line:
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the adapter's guarantees, settings and traps |
//! | `config.rs` | the operator's settings, and their validation |
//! | `connector.rs` | [`message::Connector`]: opens publishing sessions |
//! | `publisher.rs` | [`message::Publisher`]: one publishing session |
//! | `subscription.rs` | [`message::Subscription`]: one consuming session |
//! | `wire.rs` | converts messages to the broker's records and back; pure |
//! | `fault.rs` | classifies the client library's errors by party at fault and scope; pure |
//! | `inspect.rs` | a broker's answers about its topics and queues, for `relay doctor`; read-only |
//! | `admin.rs` | creates topics and queues for tests, examples and the demo |

#[cfg(any(feature = "http", feature = "sqs"))]
mod causes;
#[cfg(any(feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod evidence;
/// Open to the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inspect;
#[cfg(any(feature = "rabbitmq", feature = "sqs"))]
mod lag;
mod network;
#[cfg(any(feature = "http", feature = "kafka", feature = "memory", feature = "rabbitmq", feature = "sqs"))]
mod pending;
#[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod plaintext;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
mod proxy;
mod secret;
mod setters;
mod settings;
#[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod structured;
mod tls;
#[cfg(any(feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod unreachable;
#[cfg(all(test, feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
mod vectors;

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
pub mod oauth;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "sqs")]
pub mod sqs;

pub use inspect::{BrokerFacts, ClockReading, InspectError, Inspected};
pub use network::Network;
pub use secret::Secret;
pub use settings::InvalidSetting;
pub use tls::Tls;
