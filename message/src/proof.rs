//! The proof that an effect is durable.

use uuid::Uuid;

/// The proof that the result of a delivery is committed: its effect, or its dead letter.
/// Acknowledging requires it, so no consumer can acknowledge before the commit.
///
/// The inbox makes it once a guard's transaction has committed. It names one delivery, and settling
/// that delivery consumes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an unsettled delivery is redelivered"]
pub struct Committed {
    subject: Uuid,
}

impl Committed {
    /// States that everything `subject` (see [`Delivery::subject`](crate::Delivery::subject)) asked
    /// for is committed. For authors of an inbox on another store; calling it before the commit
    /// breaks exactly-once effects.
    pub fn attest(subject: Uuid) -> Self {
        Self { subject }
    }

    /// Returns the id of the delivery that it names.
    #[must_use]
    pub fn subject(&self) -> Uuid {
        self.subject
    }
}
