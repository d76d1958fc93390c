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

/// Returns the messages whose decisions are erased: those whose rows were erased, and those with
/// the ids `copies`, of which only copies were left.
pub(crate) fn decided(entries: &[EntryName], erased: &[EntryName], copies: &[i64]) -> Vec<Uuid> {
    let is_gone = |name: &&EntryName| erased.contains(name) || copies.contains(&name.id.0);
    entries.iter().filter(is_gone).map(|name| name.message_id).collect()
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

    #[test]
    fn decisions_go_with_the_row_or_with_its_last_copy() {
        let entry =
            |id: i64| EntryName { id: EntryId(id), message_id: Uuid::from_u128(id.cast_unsigned().into()) };
        let asked = [entry(1), entry(2), entry(3)];
        assert_eq!(decided(&asked, &asked[..1], &[3]), [asked[0].message_id, asked[2].message_id]);
        assert!(decided(&asked, &[], &[]).is_empty(), "a message that may still leave keeps them");
    }
}
