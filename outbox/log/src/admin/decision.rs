//! Decisions that an operator may take about a dead entry, and about an entry that is retried: a
//! discard for any cause, an edit only where retries fail until an operator acts. A message that
//! failed by the broker's fault may have arrived, and must not come again with other content under
//! its id.
//!
//! # A retrying entry
//! The relay owns such an entry from its due time until the outcome is stored, and reads it without
//! a lock. So a decision first takes the entry from the relay: a separate transaction postpones its
//! next retry, only while it is not due. If the old due time has still not passed after that
//! commit, no relay has read the entry, and none will before the postponed time. The decision is
//! then safe. Otherwise the entry is given back. A process that dies in between only delays a
//! retry.
//!
//! A relay that awaits the answer about such an entry also changes it before its due time, from
//! memory. If it does so before the decision, the entry is no longer due when the decision expects
//! it, and the decision refuses. If it does so after a discard, the checkpoint leaves the discarded
//! entry as it is, and the relay reads the decision next.

use std::fmt;

use bytes::Bytes;
use message::{Fault, Headers, InvalidText};
use migrations::SqlErrorKind;
use outbox::Signature;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::content::ParkedContent;
use crate::admin::entry::ListedEntry;
use crate::{EntryId, ExceptionState, LogError, RelayName};

/// A decision about a dead entry.
#[derive(Clone, PartialEq, Eq)]
pub enum Decision {
    /// Retry it, with its attempts counted from zero.
    Requeue,
    /// Give it up and unblock its key. An earlier attempt whose answer was lost may have arrived.
    Discard,
    /// Replace its content. The log's row and the message id stay as they were written. It stays
    /// dead until it is requeued. Consumers that have applied the old content refuse a new payload,
    /// because its fingerprint differs. Headers are not a part of it: such consumers ignore a
    /// change of headers alone, or apply it once more if it changes the tenant.
    Edit {
        /// The new payload; `None` keeps the old one.
        payload: Option<Bytes>,
        /// The new headers; `None` keeps the old ones.
        headers: Option<Headers>,
        /// The digest of the content that it replaces, as in [`ParkedContent::digest`]: other
        /// content is left as it is, with [`DecideError::Edited`]. `None` replaces any content.
        replaces: Option<String>,
    },
}

/// A decision with the operator who takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorDecision {
    /// The decision.
    pub decision: Decision,
    /// Who decides, and why, for the audit.
    pub signature: Signature,
}

/// The actor in the audit when `relay forget` withdraws the decisions about a relay's messages. An
/// edit that a person requeues under this name would count as withdrawn.
pub const WITHDRAWN_BY: &str = "relay forget";

/// How long an entry is taken from the relay, as a multiple of the call timeout. The decision ends
/// within one call timeout.
pub(crate) const TAKEN_FOR_CALLS: u32 = 2;

/// Maximum entries decided in one transaction. The relay's checkpoints wait for its end.
pub const DECIDED_MAX: usize = 500;

/// An entry as the operator has seen it. After a sequence was set back, another message can have
/// the same position in the log. A decision must not reach that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenEntry {
    /// Its position in the log.
    pub id: EntryId,
    /// Its message id, as in [`ListedEntry::message_id`].
    pub message_id: String,
    /// When the content that the operator has seen was edited, as in [`ListedEntry::edited_at`];
    /// `None` if it was as enqueued. A decision with a [`Confirmed`] refuses any other content.
    /// Decisions without one do not compare it.
    pub edited_at: Option<OffsetDateTime>,
}

impl From<&ListedEntry> for ChosenEntry {
    fn from(entry: &ListedEntry) -> Self {
        Self { id: entry.id, message_id: entry.message_id.clone(), edited_at: entry.edited_at }
    }
}

impl fmt::Debug for Decision {
    /// Leaves out the new content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action().as_str())
    }
}

message::words! {
    /// The kind of a decision.
    pub enum Action {
        /// See [`Decision::Requeue`].
        Requeue = "requeue",
        /// See [`Decision::Discard`].
        Discard = "discard",
        /// See [`Decision::Edit`].
        Edit = "edit",
    }
}

impl Action {
    /// Returns whether the action also applies to an entry that waits for its next retry: because
    /// an operator must fix something, such as a missing topic, or [for any
    /// cause](Self::takes_any_cause).
    #[must_use]
    pub fn takes_retrying(self) -> bool {
        self != Self::Requeue
    }

    /// Returns whether the action applies to a retrying entry whatever the cause of its failure.
    #[must_use]
    pub fn takes_any_cause(self) -> bool {
        self == Self::Discard
    }

    /// Returns the part of an error that says for which retrying entries the action is possible.
    fn condition(self) -> &'static str {
        if self.takes_any_cause() { "" } else { ", and only where an operator has to act (cause operator)" }
    }
}

impl Decision {
    /// Returns the kind.
    #[must_use]
    pub fn action(&self) -> Action {
        match self {
            Self::Requeue => Action::Requeue,
            Self::Discard => Action::Discard,
            Self::Edit { .. } => Action::Edit,
        }
    }
}

/// Why a decision was not carried out. Nothing was changed, except with [`DecideError::Unknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// No such entry is parked.
    #[error("message {id} of {relay} is not parked: it was published or discarded, or was never parked")]
    NoSuchEntry {
        /// The relay.
        relay: String,
        /// The entry.
        id: EntryId,
    },
    /// The entry is not dead, so the relay owns it. The exception is an entry that waits for its
    /// next retry, see [`Action::takes_retrying`].
    #[error("entry {id} is {state}; {action} is for dead entries only")]
    NotDead {
        /// The entry.
        id: EntryId,
        /// Its state.
        state: String,
        /// The requested action.
        action: Action,
    },
    /// The entry is retrying, and the relay may be sending it now.
    #[error(
        "entry {id} is retrying: {action} is possible only between two retries{}; try again in a second \
         while a relay runs",
        action.condition()
    )]
    Trying {
        /// The entry.
        id: EntryId,
        /// The requested action.
        action: Action,
    },
    /// Another message than the chosen one has its position in the log.
    #[error("entry {id} is a different message now, {message_id}: list the messages again")]
    AnotherMessage {
        /// The entry.
        id: EntryId,
        /// The message that is parked there now.
        message_id: String,
    },
    /// The audit cannot store the actor or the note: it is empty, too long, or contains a NUL
    /// character.
    #[error(transparent)]
    Signature(#[from] InvalidText),
    /// The actor has the name under which the audit records that the decisions of a forgotten relay
    /// no longer count.
    #[error(
        "the actor of a decision cannot be {WITHDRAWN_BY:?}: the audit uses this name for forgotten relays"
    )]
    ReservedActor,
    /// There are more entries than one transaction may decide. Nothing was changed.
    #[error(
        "{entries} entries are too many for one decision; the maximum is {DECIDED_MAX}: decide in several \
         parts"
    )]
    TooMany {
        /// The number of entries.
        entries: usize,
    },
    /// The entry does not have the content that the edit replaces, or that was shown when the
    /// decision was confirmed.
    #[error(
        "entry {id} has been edited by somebody else since it was shown: nothing was changed, show it again"
    )]
    Edited {
        /// The entry.
        id: EntryId,
    },
    /// The entry was too large to be copied, and its row is not in the log.
    #[error("the content of entry {id} is not in the log, and there is no copy of it: nothing was changed")]
    NoContent {
        /// The entry.
        id: EntryId,
    },
    /// The edit changes nothing.
    #[error("the edit contains neither a payload nor headers; give one of them")]
    EmptyEdit,
    /// The commit was not answered, or its error does not prove a rollback: the decision may be in
    /// force.
    #[error("it is unknown whether this was done: {0}; list the messages again")]
    Unknown(#[source] LogError),
    /// The database could not answer.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl DecideError {
    /// Interprets a failed commit of a decision.
    pub(crate) fn of_commit(error: sqlx::Error) -> Self {
        let is_rolled_back = SqlErrorKind::says_rolled_back(&error);
        let error = LogError::during("commit the decision")(error);
        if is_rolled_back { Self::Log(error) } else { Self::Unknown(error) }
    }

    /// Returns the party at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Log(error) | Self::Unknown(error) => error.fault(),
            _ => Fault::Operator,
        }
    }
}

/// A parked entry as the deciding transaction reads it.
pub(crate) struct EntryNow {
    pub(crate) state: String,
    pub(crate) message_id: String,
    /// Whether the transaction has locked it: a dead entry, or one that was taken from the relay.
    pub(crate) is_locked: bool,
    /// Whether its content is not the one that the decision was confirmed for.
    pub(crate) is_edited_since: bool,
}

impl ChosenEntry {
    /// Checks whether this entry, as it was read, may be decided.
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
        let is_dead = found.state == ExceptionState::Dead.as_str();
        let may_be_taken = found.state == ExceptionState::Retrying.as_str() && action.takes_retrying();
        if found.is_edited_since && (is_dead || may_be_taken) {
            return Err(DecideError::Edited { id });
        }
        if found.is_locked {
            return Ok(());
        }
        if may_be_taken {
            return Err(DecideError::Trying { id, action });
        }
        // An entry that became dead again between the two reads is not the chosen one.
        let state = if is_dead {
            String::from("changing, or has changed since the decision was confirmed")
        } else {
            found.state.clone()
        };
        Err(DecideError::NotDead { id, state, action })
    }
}

/// A confirmation that an operator has given for many entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// The id of the decision, which the audit stores with each entry. Sent twice, a confirmation
    /// is one decision.
    pub id: Uuid,
    /// The database's time for which it was given: an entry whose state has changed later is left
    /// unchanged, including one that was requeued and is being retried. Edits are found by
    /// [`ChosenEntry::edited_at`].
    pub as_of: OffsetDateTime,
}

/// A decision about some entries, in one transaction.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) relay: &'a RelayName,
    pub(crate) entries: &'a [ChosenEntry],
    pub(crate) decree: &'a OperatorDecision,
    pub(crate) confirmed: Option<Confirmed>,
}

impl Batch<'_> {
    /// Returns the time for which it was confirmed.
    pub(crate) fn as_of(&self) -> Option<OffsetDateTime> {
        self.confirmed.map(|confirmed| confirmed.as_of)
    }

    /// Returns whether the content must be that of the edit that was shown. An edit with a digest
    /// compares the content itself.
    pub(crate) fn compares_edits(&self) -> bool {
        let has_digest = matches!(self.decree.decision, Decision::Edit { replaces: Some(_), .. });
        self.confirmed.is_some() && !has_digest
    }

    /// Returns the id under which the audit stores it.
    pub(crate) fn id(&self) -> Option<Uuid> {
        self.confirmed.map(|confirmed| confirmed.id)
    }
}

impl OperatorDecision {
    /// Refuses decisions that are invalid whatever the database contains.
    pub(crate) fn check(&self, entries: usize) -> Result<(), DecideError> {
        if entries > DECIDED_MAX {
            return Err(DecideError::TooMany { entries });
        }
        self.signature.check()?;
        if self.signature.actor == WITHDRAWN_BY {
            return Err(DecideError::ReservedActor);
        }
        if matches!(self.decision, Decision::Edit { payload: None, headers: None, .. }) {
            return Err(DecideError::EmptyEdit);
        }
        Ok(())
    }
}

/// Checks that an edit finds the content that it is to replace.
pub(crate) fn check_replaced(
    decision: &Decision,
    id: EntryId,
    found: Option<&ParkedContent>,
) -> Result<(), DecideError> {
    let Decision::Edit { replaces: Some(expected), .. } = decision else { return Ok(()) };
    let found = found.ok_or(DecideError::NoContent { id })?;
    match found.digest() {
        Some(digest) if digest == *expected => Ok(()),
        _ => Err(DecideError::Edited { id }),
    }
}

/// Returns what an edit stores: the new payload, and the new headers as JSON.
pub(crate) fn edited(decision: &Decision) -> Result<(Option<Vec<u8>>, Option<String>), LogError> {
    let Decision::Edit { payload, headers, .. } = decision else { return Ok((None, None)) };
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
            signature: Signature { actor: actor.to_owned(), note: note.to_owned(), selection: None },
        };
        assert!(decree("ops", "fixed the topic", Decision::Requeue).check(1).is_ok());
        for (actor, note) in [(" ", "x"), ("ops", "")] {
            let refused = decree(actor, note, Decision::Discard).check(1);
            assert!(matches!(refused, Err(DecideError::Signature(_))), "{refused:?}");
        }
        let reserved = decree(WITHDRAWN_BY, "x", Decision::Requeue).check(1).unwrap_err();
        assert!(reserved.to_string().contains("cannot be \"relay forget\""), "{reserved}");
        let empty = Decision::Edit { payload: None, headers: None, replaces: None };
        assert!(matches!(decree("ops", "x", empty).check(1), Err(DecideError::EmptyEdit)));
    }
}
