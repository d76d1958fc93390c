//! Messages that are older than the inbox remembers but that an operator accepts.
//!
//! Such a message has no inbox row. Its closed dead letter is the record of its effect. One message
//! may have several dead letters, because its producer has sent it again with other bytes.

use message::Message;

use super::reason::Resolution;
use super::record::DeadLetter;
use crate::comparison::{PayloadComparison, Stored, canonical_content, compare, identity};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::ids::ConsumerName;
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;

impl<DB: Dialect> Inbox<DB> {
    /// Returns whether another dead letter shows that the message of this one took effect. Locks
    /// the dead letters of the message, so that at most one of them is applied late.
    ///
    /// # Errors
    /// [`RedriveError::Refused`] when a message with the same id and a different payload or source
    /// took effect. [`RedriveError::Store`]; two redrives that lock each other's dead letter end in
    /// a deadlock, and one of them is tried again.
    pub(crate) async fn took_effect_before(
        &self,
        tx: &mut InboxTransaction<DB>,
        consumer: &ConsumerName,
        letter: &DeadLetter,
        message: &Message,
    ) -> Result<bool, RedriveError> {
        let failed = StoreError::during;
        let others = self.tables().lock_others(tx, letter.key(), letter.id).await;
        let others = others.map_err(failed("find other dead letters of a message"))?;
        let mut refused = None;
        // One at a time: their payloads may be large, and there may be any number of them.
        for id in others {
            let other = self.tables().dead_letter(tx, id, false).await;
            let other = other.map_err(failed("read another dead letter of a message"))?;
            let Some(stored) = other.and_then(|other| self.recorded_by(&other, message)) else { continue };
            match compare(stored, consumer, message, self.options().sources) {
                Ok(_) => return Ok(true),
                Err(refusal) => refused = Some(refusal),
            }
        }
        refused.map_or(Ok(false), |refusal| Err(RedriveError::Refused(refusal)))
    }

    /// Returns the values that an inbox row would hold about the effect that a dead letter records.
    /// If both are the same message, its fingerprint is that of `message`.
    fn recorded_by(&self, letter: &DeadLetter, message: &Message) -> Option<Stored> {
        let (resolution, processed_at) = letter.resolved?;
        if resolution == Resolution::Discarded {
            return None;
        }
        let compares_contents = self.options().payloads == PayloadComparison::CanonicalJson;
        let is_same = |applied: Message| {
            let content = compares_contents.then(|| canonical_content(&applied)).flatten();
            identity(&applied) == identity(message)
                || content.is_some_and(|content| Some(content) == canonical_content(message))
        };
        let is_same = letter.message().is_ok_and(is_same);
        // The fingerprint of a dead letter may also stand for its source.
        let fingerprint = if is_same { identity(message) } else { letter.fingerprint };
        let source = letter.source.clone();
        Some(Stored { fingerprint, source, result: None, processed_at, dead_letter: None })
    }
}
