//! Whose fault a failure is, and how far it reaches: all that the relay needs to decide what to do.

use std::fmt;

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The broker's or the network's: wait and send again, without end; never counts as an attempt.
    /// A timeout belongs here: its outcome is unknown and the stable id makes sending again
    /// harmless.
    Broker,
    /// The message's own: counts as an attempt, then the message is parked where an operator sees
    /// it.
    Message,
    /// The operator's: something is missing or forbidden (an unknown topic, no permission, wrong
    /// credentials). Affected messages wait until it is repaired; never counts as an attempt.
    Operator,
}

/// How far a failure reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultScope {
    /// Only the message it was reported for.
    Message,
    /// Every message of the same topic.
    Topic,
    /// The whole connection: what is unconfirmed on it has an unknown outcome and is sent again on
    /// a new one.
    Session,
}

impl Fault {
    /// The lower-case word for logs and tables.
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
    /// The lower-case word for logs and tables.
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
