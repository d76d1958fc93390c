//! Removes what published entries hold, for a person's right to be forgotten.

use outbox::Signature;
use uuid::Uuid;

use super::selection::EntryName;
use crate::LogError;

/// Maximum entries of one transaction. Checkpoints that change the same entries wait for its end.
pub const ERASED_MAX: usize = 500;

/// The text of the audit about an erased entry, beside the action `edit`.
pub(crate) const ERASED: &str = "the content was erased";

/// Who erases, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// The author and the reason. They stay in the audit: neither may name what is erased.
    pub signature: Signature,
    /// The id of the decision: the audit lists the messages of all its transactions as one line.
    pub decision: Uuid,
}

impl Erasure {
    /// Refuses what no database can carry out.
    pub(crate) fn check(&self, entries: &[EntryName]) -> Result<(), LogError> {
        if entries.len() > ERASED_MAX {
            let count = entries.len();
            return Err(LogError::operator(format!(
                "{count} messages are too many for one transaction; the maximum is {ERASED_MAX}"
            )));
        }
        self.signature.check().map_err(|error| LogError::operator(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EntryId;

    #[test]
    fn an_erasure_is_signed_and_bounded() {
        let erasure = |note: &str| Erasure { signature: Signature::new("ann", note), decision: Uuid::nil() };
        let entries = |count| vec![EntryName { id: EntryId(1), message_id: Uuid::nil() }; count];
        assert!(erasure("request 7").check(&entries(ERASED_MAX)).is_ok());
        let refused = erasure("request 7").check(&entries(ERASED_MAX + 1)).unwrap_err().to_string();
        assert!(refused.contains("501 messages are too many"), "{refused}");
        assert!(erasure(" ").check(&entries(1)).is_err());
    }
}
