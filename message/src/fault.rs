//! The party at fault for a failure, and its reach: all that the relay needs to decide what to do.

crate::words! {
    /// The party at fault for a failure. A new class requires a new major version: all code that
    /// matches on it must handle the new one, and the compiler names these places.
    #[derive(Hash)]
    pub enum Fault {
        /// The broker or the network: wait and send again, without limit; never counts as an
        /// attempt. A timeout belongs here: its outcome is unknown, and the stable id makes sending
        /// again harmless.
        Broker = "broker",
        /// The message: counts as an attempt. After the last attempt the message is parked, where
        /// an operator sees it.
        Message = "message",
        /// The operator: something is missing or forbidden (an unknown topic, no permission, wrong
        /// credentials). Affected messages wait until it is repaired; never counts as an attempt.
        Operator = "operator",
    }

    /// The reach of a failure. As with [`Fault`], a new one requires a new major version.
    #[derive(Hash)]
    pub enum FaultScope {
        /// Only the message it was reported for.
        Message = "message",
        /// Every message of the same topic.
        Topic = "topic",
        /// The whole connection. Its unconfirmed messages have an unknown outcome and are sent
        /// again on a new connection.
        Session = "session",
    }
}

impl Fault {
    /// Returns whether waiting may be enough: the broker, the network or a database may be back
    /// soon. Other failures come again until the message or the configuration has changed.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        match self {
            Self::Broker => true,
            Self::Message | Self::Operator => false,
        }
    }
}
