//! The part that all adapters' `inspect.rs` share: what a broker told, and why it told nothing.

use std::time::Duration;

use message::Fault;

/// A broker's answers about itself and the destinations that it was asked for. Gathering changes
/// nothing on the broker.
#[derive(Debug, Clone)]
pub struct BrokerFacts<D> {
    /// Its product and version, where it tells them.
    pub version: Option<String>,
    /// How many servers it has, where it tells.
    pub nodes: Option<usize>,
    /// Its clock, where it tells the time.
    pub clock: Option<ClockReading>,
    /// The topics that it was asked for, in the order of the question.
    pub topics: Vec<Inspected<D>>,
}

/// The answer for one topic.
#[derive(Debug, Clone)]
pub struct Inspected<D> {
    /// The topic, as producers name it.
    pub topic: String,
    /// The broker's answer, or why it told nothing.
    pub facts: Result<D, InspectError>,
}

/// A broker's clock beside this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// The difference between the two, without its sign.
    pub skew: Duration,
    /// How far the difference may be wrong: the time of the question, and the resolution of the
    /// answer.
    pub uncertainty: Duration,
}

/// Why a broker told nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InspectError {
    /// [`Fault::Broker`]: it did not answer. [`Fault::Operator`]: what was asked for is missing, or
    /// not permitted.
    pub fault: Fault,
    /// The cause, and what to do. Holds no secret.
    pub reason: String,
}

impl InspectError {
    /// Something that an operator has to change.
    #[cfg(any(feature = "kafka", feature = "memory", feature = "rabbitmq", feature = "sqs"))]
    pub(crate) fn operator(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Operator, reason: reason.into() }
    }

    /// Something that may pass.
    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    pub(crate) fn broker(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Broker, reason: reason.into() }
    }
}

impl From<message::SubscriptionError> for InspectError {
    fn from(error: message::SubscriptionError) -> Self {
        Self { fault: error.fault(), reason: error.to_string() }
    }
}
