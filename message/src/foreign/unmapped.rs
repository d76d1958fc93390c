//! The reason why a mapping did not read a delivery.

use crate::id::InvalidId;
use crate::text::InvalidText;

/// The reason why a mapping did not read a delivery. The dead letter gets its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmapped {
    /// The delivery has another form: another mapping may read it.
    #[error("{0}")]
    OtherForm(String),
    /// The delivery has the form of this mapping, but cannot be read: a part is missing or invalid.
    #[error("{0}")]
    Invalid(String),
}

impl Unmapped {
    /// Makes the error of a delivery in another form.
    #[must_use]
    pub fn other_form(reason: impl Into<String>) -> Self {
        Self::OtherForm(reason.into())
    }

    /// Makes the error of a delivery that has the right form and cannot be read.
    #[must_use]
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }

    /// Returns whether another mapping may read the delivery.
    #[must_use]
    pub fn is_other_form(&self) -> bool {
        matches!(self, Self::OtherForm(_))
    }
}

impl From<InvalidText> for Unmapped {
    fn from(error: InvalidText) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<InvalidId> for Unmapped {
    fn from(error: InvalidId) -> Self {
        Self::Invalid(error.to_string())
    }
}
