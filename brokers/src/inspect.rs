//! Types shared by all adapters' `inspect.rs`: a broker's answers, or why there is none.

use std::time::Duration;

use message::Fault;

/// A broker's answers about itself and the topics that were asked about. Gathering them changes
/// nothing on the broker.
#[derive(Debug, Clone)]
pub struct BrokerFacts<D> {
    /// Product and version, if the broker reports them.
    pub version: Option<String>,
    /// Number of servers, if the broker reports it.
    pub nodes: Option<usize>,
    /// The broker's clock, if it reports the time.
    pub clock: Option<ClockReading>,
    /// The alarms of its servers during which it accepts no messages, if it reports them.
    pub alarms: Option<Vec<String>>,
    /// The topics asked about, in the order of the request.
    pub topics: Vec<Inspected<D>>,
}

/// The answer for one topic.
#[derive(Debug, Clone)]
pub struct Inspected<D> {
    /// The topic, as producers name it.
    pub topic: String,
    /// The broker's answer, or why there is none.
    pub facts: Result<D, InspectError>,
}

/// A broker's clock compared with this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Absolute difference between the two clocks.
    pub skew: Duration,
    /// Error bound of the difference: the duration of the request plus the resolution of the
    /// answer.
    pub uncertainty: Duration,
}

/// The reason why a broker gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InspectError {
    /// [`Fault::Broker`]: the broker did not answer. [`Fault::Operator`]: the subject of the
    /// request is missing or not permitted.
    pub fault: Fault,
    /// The cause and the remedy. Contains no secret.
    pub reason: String,
}

impl InspectError {
    /// Returns the remedy with which the reason ends; `None` if there is none.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        message::error_text::remedy(&self.reason)
    }

    /// Returns an error that an operator has to fix.
    #[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
    pub(crate) fn operator(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Operator, reason: reason.into() }
    }

    /// Returns an error that may be temporary.
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
