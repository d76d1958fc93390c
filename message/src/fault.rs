//! The party at fault for a failure, and its reach: all that the relay needs to decide what to do.

use std::fmt;

/// The party at fault for a failure. A new class requires a new major version: all code that
/// matches on it must handle the new one, and the compiler names these places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The broker or the network: wait and send again, without limit; never counts as an attempt. A
    /// timeout belongs here: its outcome is unknown, and the stable id makes sending again
    /// harmless.
    Broker,
    /// The message: counts as an attempt. After the last attempt the message is parked, where an
    /// operator sees it.
    Message,
    /// The operator: something is missing or forbidden (an unknown topic, no permission, wrong
    /// credentials). Affected messages wait until it is repaired; never counts as an attempt.
    Operator,
}

/// The reach of a failure. As with [`Fault`], a new one requires a new major version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultScope {
    /// Only the message it was reported for.
    Message,
    /// Every message of the same topic.
    Topic,
    /// The whole connection. Its unconfirmed messages have an unknown outcome and are sent again on
    /// a new connection.
    Session,
}

impl Fault {
    /// All parties.
    pub const ALL: [Self; 3] = [Self::Broker, Self::Message, Self::Operator];

    /// Returns the party that [`Fault::as_str`] names so.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == word)
    }

    /// Returns the lower-case word for logs and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Message => "message",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FaultScope {
    /// Returns the lower-case word for logs and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Topic => "topic",
            Self::Session => "session",
        }
    }
}

impl fmt::Display for FaultScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
