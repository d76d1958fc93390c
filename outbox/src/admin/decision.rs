//! Decisions that an operator may take about a dead entry, and about one that is retried in vain
//! until an operator acts.
//!
//! # An entry that is retried
//! The relay owns it from the moment it is due until the outcome is stored, and reads it without a
//! lock. So it is taken from the relay first, in a transaction of its own: its next retry is
//! postponed, only while it is not due. If it is still not due by the old time after that
//! commit, no relay has read it, and none will before the postponed time: the decision is safe.
//! Otherwise it is given back. An operator who vanishes in between delays a retry, nothing else.

use std::fmt;

use bytes::Bytes;
use message::text::{InvalidText, check_signature};
use message::{Fault, Headers};
use sha2::{Digest, Sha256};

use crate::admin::entry::ListedEntry;
use crate::log::{EntryId, ExceptionState, LogError, RelayName};

/// A decision about a dead entry.
#[derive(Clone, PartialEq, Eq)]
pub enum Decision {
    /// Try it again, with its attempts counted from zero.
    Requeue,
    /// Give it up; its key goes on.
    Discard,
    /// Replace its content; the log's row stays as it was written, the message id too. It stays
    /// dead until it is requeued. Consumers that have applied the old content refuse the new one
    /// (another fingerprint).
    Edit {
        /// The new payload; `None` leaves it.
        payload: Option<Bytes>,
        /// The new headers; `None` leaves them.
        headers: Option<Headers>,
    },
}

/// A decision with the one who takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorDecision {
    /// The decision.
    pub decision: Decision,
    /// Who decides, for the audit.
    pub actor: String,
    /// Why, for the audit.
    pub note: String,
    /// The filter by which the entry was chosen, and how many it chose; `None` when that is not
    /// told. For the audit.
    pub selection: Option<String>,
}

/// For how long an entry is taken from the relay, in terms of the limit on a call: the decision
/// ends within one.
pub(crate) const TAKEN_FOR_CALLS: u32 = 2;

/// Entries that are decided about in one transaction at most: the relay's own checkpoints wait for
/// its end.
pub const DECIDED_MAX: usize = 500;

/// An entry as the operator has seen it. A place in the log can get another message, when a
/// sequence was set back; a decision about the one that was seen must not reach the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenEntry {
    /// Its place in the log.
    pub id: EntryId,
    /// Its message id, as [`ListedEntry::message_id`] has it.
    pub message_id: String,
}

impl From<&ListedEntry> for ChosenEntry {
    fn from(entry: &ListedEntry) -> Self {
        Self { id: entry.id, message_id: entry.message_id.clone() }
    }
}

impl fmt::Debug for Decision {
    /// Without the new content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action().as_str())
    }
}

/// The verb of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// See [`Decision::Requeue`].
    Requeue,
    /// See [`Decision::Discard`].
    Discard,
    /// See [`Decision::Edit`].
    Edit,
}

impl Action {
    /// Whether it is possible also about an entry that waits for its next retry because of
    /// something that an operator has to mend, such as a topic that is missing.
    #[must_use]
    pub fn takes_retrying(self) -> bool {
        self != Self::Requeue
    }

    /// The lower-case word that the audit stores.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Discard => "discard",
            Self::Edit => "edit",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Decision {
    /// Its verb.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Requeue => Action::Requeue,
            Self::Discard => Action::Discard,
            Self::Edit { .. } => Action::Edit,
        }
    }
}

/// Why a decision was not carried out; nothing is changed, but for [`DecideError::Unknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// There is no such parked entry.
    #[error("entry {id} is not parked at relay {relay}: it has left, or never was parked")]
    NoSuchEntry {
        /// The relay.
        relay: String,
        /// The entry.
        id: EntryId,
    },
    /// The relay itself is busy with an entry that is not dead, unless it waits for its next retry
    /// because of something that an operator has to mend.
    #[error("entry {id} is {state}; {action} is for dead entries only")]
    NotDead {
        /// The entry.
        id: EntryId,
        /// Its state.
        state: String,
        /// The action that was asked for.
        action: Action,
    },
    /// The entry is retrying, and the relay may be sending it at this moment.
    #[error(
        "entry {id} is retrying: only between two retries, and only where an operator has to act (cause operator), \
         {action} is possible; ask again in a second while a relay runs"
    )]
    Trying {
        /// The entry.
        id: EntryId,
        /// The action that was asked for.
        action: Action,
    },
    /// Its place in the log holds another message than the one that was chosen.
    #[error("entry {id} is another message now, {message_id}: list the messages again")]
    AnotherMessage {
        /// The entry.
        id: EntryId,
        /// The message that is parked there.
        message_id: String,
    },
    /// The actor or the note is not one that the audit keeps: empty, too long, or with a NUL
    /// character.
    #[error(transparent)]
    Signature(#[from] InvalidText),
    /// More entries than one transaction decides about. Nothing was changed.
    #[error(
        "{entries} entries are decided about at once; at most {DECIDED_MAX} are taken: decide about them in parts"
    )]
    TooMany {
        /// How many there are.
        entries: usize,
    },
    /// The edit changes nothing.
    #[error("the edit holds neither a payload nor headers; give one of them")]
    EmptyEdit,
    /// The answer to the commit was lost: the decision may be in force.
    #[error("it is unknown whether this was done: {0}; list the messages again")]
    Unknown(#[source] LogError),
    /// The database could not be asked.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl DecideError {
    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Log(error) | Self::Unknown(error) => error.fault(),
            _ => Fault::Operator,
        }
    }
}

/// A parked entry as a transaction of decisions finds it.
pub(crate) struct EntryNow {
    pub(crate) state: String,
    pub(crate) message_id: String,
    /// Whether the transaction has locked it, as a dead one or one that was taken from the relay.
    pub(crate) is_locked: bool,
}

impl ChosenEntry {
    /// Whether this entry may be decided about, as it was found.
    pub(crate) fn verdict(
        &self,
        relay: &RelayName,
        found: Option<&EntryNow>,
        action: Action,
    ) -> Result<(), DecideError> {
        let id = self.id;
        let Some(found) = found else {
            return Err(DecideError::NoSuchEntry { relay: relay.to_string(), id });
        };
        if found.message_id != self.message_id {
            return Err(DecideError::AnotherMessage { id, message_id: found.message_id.clone() });
        }
        if found.is_locked {
            return Ok(());
        }
        if found.state == ExceptionState::Retrying.as_str() && action.takes_retrying() {
            return Err(DecideError::Trying { id, action });
        }
        // One that died again between two looks is not the one that was chosen.
        let is_dead = found.state == ExceptionState::Dead.as_str();
        let state = if is_dead { String::from("changing") } else { found.state.clone() };
        Err(DecideError::NotDead { id, state, action })
    }
}

impl OperatorDecision {
    /// Refuses decrees that are wrong whatever the database holds.
    pub(crate) fn check(&self, entries: usize) -> Result<(), DecideError> {
        if entries > DECIDED_MAX {
            return Err(DecideError::TooMany { entries });
        }
        check_signature(&self.actor, &self.note)?;
        if matches!(self.decision, Decision::Edit { payload: None, headers: None }) {
            return Err(DecideError::EmptyEdit);
        }
        Ok(())
    }
}

/// The content of an entry as an operator's edit sees it; PostgreSQL makes its digest by itself.
#[cfg(any(feature = "sqlite", test))]
pub(crate) struct Content {
    pub(crate) payload: Vec<u8>,
    pub(crate) headers: Option<Vec<u8>>,
}

#[cfg(any(feature = "sqlite", test))]
impl Content {
    /// SHA-256 of payload and headers with their lengths, in hexadecimal.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.payload[..], self.headers.as_deref().unwrap_or_default()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the new payload and the new headers, as JSON, that an edit stores.
pub(crate) fn edited(decision: &Decision) -> Result<(Option<Vec<u8>>, Option<String>), LogError> {
    let Decision::Edit { payload, headers } = decision else { return Ok((None, None)) };
    let headers = headers.as_ref().map(serde_json::to_string).transpose();
    let headers =
        headers.map_err(|error| LogError::Corrupt { what: "headers", problem: error.to_string() })?;
    Ok((payload.as_ref().map(|payload| payload.to_vec()), headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_signed_and_edits_say_something() {
        let decree = |actor: &str, note: &str, decision| OperatorDecision {
            decision,
            actor: actor.to_owned(),
            note: note.to_owned(),
            selection: None,
        };
        assert!(decree("ops", "fixed the topic", Decision::Requeue).check(1).is_ok());
        for (actor, note) in [(" ", "x"), ("ops", "")] {
            let refused = decree(actor, note, Decision::Discard).check(1);
            assert!(matches!(refused, Err(DecideError::Signature(_))), "{refused:?}");
        }
        let empty = Decision::Edit { payload: None, headers: None };
        assert!(matches!(decree("ops", "x", empty).check(1), Err(DecideError::EmptyEdit)));
    }

    #[test]
    fn digests_tell_payload_and_headers_apart() {
        let digest = |payload: &[u8], headers: Option<&str>| {
            Content { payload: payload.to_vec(), headers: headers.map(|text| text.as_bytes().to_vec()) }
                .digest()
        };
        assert_eq!(digest(b"a", None).len(), 64);
        assert_ne!(digest(b"ab", None), digest(b"a", Some("b")));
    }
}
