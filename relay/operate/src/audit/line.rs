//! One decision, from any audit.

use std::collections::BTreeSet;
use std::fmt;

use outbox::Signature;
use outbox_log::admin::{AuditRecord, AuditedDecision, Operation};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::places::OutboxPlace;
use crate::seconds;

/// The actions about sessions. A process may read only one of the audits, so all have them.
const OF_SESSIONS: [&str; 3] = ["login", "logout", "revoke"];

/// The action by which an operator has a dead message tried again.
pub(super) const REQUEUE: &str = "requeue";

message::words! {
    /// The kind of audit that has a decision.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum AuditSource {
        /// Of an outbox: messages that a relay could not publish, and operations on a pipeline.
        Outbox = "outbox",
        /// The audit of an inbox: dead letters.
        Inbox = "inbox",
        /// Of idempotency keys.
        Keys = "keys",
        /// Of sagas.
        Sagas = "sagas",
    }
}

/// One decision about one or several messages, about a key or a saga, or another operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditLine {
    /// The time, by the database's clock; of several messages, that of the last one.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// The author.
    pub actor: String,
    /// `requeue`, `discard`, `edit`; `release` for a key; `retry`, `cancel`, `skip` for
    /// a saga; or an operation: `pause`, `resume`, `payload`, `tail`, `adopt`, `give back`;
    /// `replay`, `forget`, `expire` when the work begins, and `replayed`, `forgotten`, `expired`
    /// when it is done.
    pub action: String,
    /// The kind of audit.
    pub source: AuditSource,
    /// The pipeline or the consumer; of a key, its scope and operation; the type of a saga.
    pub owner: String,
    /// The other pipelines whose audits have the line: an action about a session is in all of them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub also_of: BTreeSet<String>,
    /// Number of its messages; 0 for an operation, a key and a saga.
    pub messages: u64,
    /// Whether it has more messages: older rows of the audit were not read.
    pub messages_is_at_least: bool,
    /// The place in the log, the id of the dead letter, the key, or the id of the saga; `None` for
    /// an operation and for several messages.
    pub id: Option<String>,
    /// The message id, if the audit has it.
    pub message_id: Option<String>,
    /// The filter that chose the messages, with their number; for a pause or resume, its scope; for
    /// a saga, the step.
    pub selection: Option<String>,
    /// The reason.
    pub note: String,
    /// Whether a requeue applies a message older than the inbox remembers.
    pub accept_late: bool,
    /// The outcome; `None` while a request is open, and for actions that take effect at once. For
    /// several messages, the number of each outcome.
    pub outcome: Option<String>,
    /// The time of the outcome.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub done_at: Option<OffsetDateTime>,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
    /// The error for which the message was dead at the time of the decision, if the audit has it.
    pub error: Option<String>,
    /// The id that the rows of one decision share, if the audit has one.
    #[serde(skip)]
    pub(super) decision: Option<Uuid>,
    /// Its number in the audit of an outbox, if it is a decision about one message there.
    #[serde(skip)]
    pub number: Option<i64>,
}

impl AuditLine {
    /// Returns the subject of the decision if it is a single one, or the number of its messages: `3
    /// messages`, `≥ 3 messages`.
    #[must_use]
    pub fn subject(&self) -> Option<String> {
        let least = if self.messages_is_at_least { "≥ " } else { "" };
        match self.messages {
            0 | 1 if !self.messages_is_at_least => self.id.clone(),
            messages => Some(format!("{least}{messages} messages")),
        }
    }

    /// Returns whether it is about sessions of the page, not about a pipeline.
    #[must_use]
    pub fn is_of_session(&self) -> bool {
        OF_SESSIONS.contains(&self.action.as_str())
    }

    /// Returns the name of its owner, and of all others that have the line.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.owner).chain(&self.also_of).map(String::as_str)
    }

    /// Returns its owner, or the number of pipelines that have the line.
    #[must_use]
    pub fn owned(&self) -> String {
        match self.also_of.len() {
            0 => self.owner.clone(),
            others => format!("{} pipelines", others + 1),
        }
    }

    /// Creates a line with what every decision has, and returns its subject.
    fn of<A: fmt::Display, S>(source: AuditSource, line: outbox::AuditLine<A, S>) -> (Self, S) {
        let Signature { actor, note, selection } = line.signature;
        let of_every = Self {
            at: line.at,
            actor,
            action: line.action.to_string(),
            source,
            owner: String::new(),
            also_of: BTreeSet::new(),
            messages: 0,
            messages_is_at_least: false,
            id: None,
            message_id: None,
            selection,
            note,
            accept_late: false,
            outcome: None,
            done_at: None,
            digest_before: None,
            digest_after: None,
            error: None,
            decision: None,
            number: None,
        };
        (of_every, line.subject)
    }

    /// Creates the line of a decision of an outbox, with the number of its messages.
    pub(super) fn of_audited(place: &OutboxPlace, audited: AuditedDecision) -> Self {
        let AuditedDecision { last, id, entries } = audited;
        Self { messages: entries, decision: id, ..Self::of_record(place, last) }
    }

    pub(super) fn of_record(place: &OutboxPlace, record: AuditRecord) -> Self {
        let number = Some(record.number);
        let (line, entry) = Self::of(AuditSource::Outbox, record);
        Self {
            owner: place.pipeline.to_string(),
            messages: 1,
            id: Some(entry.id.to_string()),
            message_id: Some(entry.message_id),
            digest_before: entry.digest_before,
            digest_after: entry.digest_after,
            error: entry.error,
            number,
            ..line
        }
    }

    pub(super) fn of_operation(place: &OutboxPlace, operation: Operation) -> Self {
        let (line, ()) = Self::of(AuditSource::Outbox, operation);
        Self { owner: place.pipeline.to_string(), ..line }
    }

    pub(super) fn of_decision(decision: inbox::Decision) -> Self {
        let is_requeue = decision.action == inbox::Action::Redrive;
        let (line, letter) = Self::of(AuditSource::Inbox, decision);
        Self {
            // The audit stores a word of its own; an operator has requeued the message.
            action: if is_requeue { REQUEUE.to_owned() } else { line.action },
            owner: letter.consumer,
            messages: 1,
            id: Some(letter.dead_letter.to_string()),
            accept_late: letter.accept_late,
            outcome: letter.outcome,
            done_at: letter.done_at,
            ..line
        }
    }

    pub(super) fn of_key(decision: idempotency::Decision) -> Self {
        let (line, key) = Self::of(AuditSource::Keys, decision);
        let owner = format!("{}, {}", key.tenant(), key.operation());
        Self { owner, id: Some(key.key().to_string()), ..line }
    }

    pub(super) fn of_saga(decision: saga::Decision) -> Self {
        let (line, saga) = Self::of(AuditSource::Sagas, decision);
        Self {
            owner: saga.id.saga_type().to_owned(),
            id: Some(saga.id.id().to_owned()),
            selection: saga.step.map(|step| format!("step {step}")),
            ..line
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a decision about one message of the pipeline `orders`.
    pub(crate) fn sample(actor: &str, id: i64, selection: Option<&str>) -> AuditLine {
        let note = String::from("a test");
        let signature = Signature { actor: actor.to_owned(), note, selection: selection.map(str::to_owned) };
        let at = OffsetDateTime::UNIX_EPOCH;
        let line = outbox::AuditLine { number: 1, at, signature, action: "requeue", subject: () };
        AuditLine {
            owner: String::from("orders"),
            messages: 1,
            id: Some(id.to_string()),
            message_id: Some(String::from("m")),
            ..AuditLine::of(AuditSource::Outbox, line).0
        }
    }

    #[test]
    fn a_count_that_is_not_known_is_a_lower_bound() {
        let line = sample("ann", 7, None);
        assert_eq!(line.subject().as_deref(), Some("7"));
        let many = AuditLine { messages: 3, id: None, ..line };
        assert_eq!(many.subject().as_deref(), Some("3 messages"));
        let cut = AuditLine { messages_is_at_least: true, ..many };
        assert_eq!(cut.subject().as_deref(), Some("≥ 3 messages"));
        let pause = AuditLine { messages: 0, messages_is_at_least: false, ..cut };
        assert_eq!(pause.subject(), None);
    }
}
