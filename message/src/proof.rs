//! The proof that an effect is durable.

use uuid::Uuid;

/// The proof that what a delivery asked for is committed: its effect, or its dead letter.
/// Acknowledging demands it, so a consumer cannot be written that acknowledges first.
///
/// The inbox makes it when a guard's transaction has committed. It names one delivery and is used
/// up by settling it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a delivery that is not settled comes again"]
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

    /// The delivery that is proven.
    #[must_use]
    pub fn subject(&self) -> Uuid {
        self.subject
    }
}
