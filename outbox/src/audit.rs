//! Who decides, and how long decisions of operators are kept.

use std::time::Duration;

use message::InvalidText;

/// Default retention of operators' decisions: three years.
#[doc(hidden)]
pub const AUDIT_RETENTION_DEFAULT: Duration = Duration::from_secs(1_096 * 86_400);
/// Minimum retention of operators' decisions.
#[doc(hidden)]
pub const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(31 * 86_400);
/// Maximum retention of operators' decisions: a century.
#[doc(hidden)]
pub const AUDIT_RETENTION_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// Who decides, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The person or program: 1 to 255 bytes.
    pub actor: String,
    /// The reason: 1 to 2,000 bytes.
    pub note: String,
    /// The filter that selected the subject of the decision, and how many it selected; `None` when
    /// unknown.
    pub selection: Option<String>,
}

impl Signature {
    /// Checks that the audit can store the signature.
    ///
    /// # Errors
    /// [`InvalidText`]: an actor or a note that is empty or too long, or holds a NUL character.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), InvalidText> {
        message::check_signature(&self.actor, &self.note)
    }
}
