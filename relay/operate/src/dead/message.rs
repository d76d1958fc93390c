//! One waiting message, in the form that outboxes and inboxes share.

use std::str::FromStr;

use inbox::{DeadLetter, DeadLetterId, Reason, SeenLetter};
use message::Fault;
use outbox_log::admin::ListedEntry;
use outbox_log::{EntryId, ExceptionState};
use serde::Serialize;
use time::OffsetDateTime;

use crate::message_state::MessageState;
use crate::seconds;

/// The state of a message that an operator has requeued and that is dead nevertheless.
pub(super) const DEAD_AGAIN: &str = "dead again";

message::words! {
    /// The kind of place where a message waits.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DeadSource {
        /// In an outbox: a relay could not publish it.
        Outbox = "outbox",
        /// In an inbox: a consumer could not apply it.
        Inbox = "inbox",
    }
}

/// The error for a word that names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a source; use outbox or inbox")]
pub struct UnknownSource(String);

impl FromStr for DeadSource {
    type Err = UnknownSource;

    fn from_str(word: &str) -> Result<Self, UnknownSource> {
        Self::from_word(word).ok_or_else(|| UnknownSource(word.chars().take(64).collect()))
    }
}

/// The row of a message, and the index of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Outbox(usize, EntryId),
    Inbox(usize, DeadLetterId),
}

/// A parked message or a dead letter, without its payload and the values of its headers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeadMessage {
    /// The kind of place where it waits.
    pub source: DeadSource,
    /// The pipeline whose relay parked it; `None` for a dead letter of an inbox.
    pub pipeline: Option<String>,
    /// The consumer whose dead letter it is; `None` for an entry of an outbox.
    pub consumer: Option<String>,
    /// The scope of that consumer.
    pub scope: Option<String>,
    /// Its position in the log, or the id of the dead letter.
    pub id: String,
    /// Its message id; `None` for a delivery that had none.
    pub message_id: Option<String>,
    /// Its state; for a closed dead letter, the way in which it was closed.
    pub state: MessageState,
    /// The topic or queue.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: Option<String>,
    /// The party at fault (`message`, `broker`), or `setup` if an operator has to repair something
    /// that is missing or refused, such as its topic; of a dead letter, its reason.
    pub cause: Option<String>,
    /// The last error.
    pub error: Option<String>,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// Number of deliveries that were dead-lettered; `None` for an entry of an outbox.
    pub deliveries: Option<u32>,
    /// The time until it is due, in seconds; `None` for states that wait for something else.
    pub due_in_seconds: Option<f64>,
    /// The origin of the delivery; `None` for an entry of an outbox.
    pub origin: Option<String>,
    /// The names of a dead letter's headers.
    pub header_names: Vec<String>,
    /// The size of its payload.
    pub payload_bytes: u64,
    /// Whether an operator has edited it.
    pub edited: bool,
    /// The author of a requeue that no consumer has carried out yet; only for a dead letter.
    pub requeue_requested_by: Option<String>,
    /// Whether it is dead although an operator has requeued it: it has died again, or its consumer
    /// has failed again.
    pub died_again: bool,
    /// The time since which it waits.
    #[serde(serialize_with = "seconds::serialize")]
    pub since: OffsetDateTime,
    /// The time when its state last changed, an operator last edited it, or its consumer last
    /// failed after a requeue.
    #[serde(serialize_with = "seconds::serialize")]
    pub changed_at: OffsetDateTime,
    /// When the content of an outbox's entry was last edited.
    #[serde(skip)]
    pub(crate) edited_at: Option<OffsetDateTime>,
    #[serde(skip)]
    pub(crate) row: Row,
    /// Its position in the order of arrival at its inbox; 0 for an entry of an outbox.
    #[serde(skip)]
    pub(crate) seq: i64,
}

/// The word for the party at fault that the database calls `operator`: the set-up, which an
/// operator has to complete. No operator has caused it.
const SETUP: &str = "setup";

/// Returns the word that people read for a cause, which may be one of the database.
pub(super) fn cause_for_people(cause: &str) -> &str {
    if cause == Fault::Operator.as_str() { SETUP } else { cause }
}

/// Returns the word of the database for a cause, which may be one that people read.
pub(super) fn cause_for_database(cause: &str) -> &str {
    if cause == SETUP { Fault::Operator.as_str() } else { cause }
}

impl DeadMessage {
    /// Returns whether it is being retried.
    pub(crate) fn is_retried(&self) -> bool {
        self.state == MessageState::Retrying
    }

    /// Returns whether it is retried without success until an operator acts, for example because
    /// its topic is missing.
    pub(crate) fn waits_for_operator(&self) -> bool {
        self.is_retried() && self.cause.as_deref() == Some(SETUP)
    }

    pub(crate) fn of_entry(place: usize, pipeline: &str, state: ExceptionState, entry: ListedEntry) -> Self {
        Self {
            source: DeadSource::Outbox,
            pipeline: Some(pipeline.to_owned()),
            consumer: None,
            scope: None,
            id: entry.id.to_string(),
            message_id: Some(entry.message_id),
            state: state.into(),
            topic: entry.topic,
            key: entry.key,
            kind: Some(entry.kind),
            cause: entry.fault.as_deref().map(|fault| cause_for_people(fault).to_owned()),
            error: entry.error,
            attempts: entry.attempts,
            deliveries: None,
            due_in_seconds: entry.due_in.map(|due_in| due_in.as_secs_f64()),
            origin: None,
            header_names: Vec::new(),
            payload_bytes: entry.payload_bytes,
            edited: entry.edited,
            edited_at: entry.edited_at,
            requeue_requested_by: None,
            died_again: entry.died_again,
            since: entry.created_at,
            changed_at: entry.updated_at,
            row: Row::Outbox(place, entry.id),
            seq: 0,
        }
    }

    pub(crate) fn of_letter(place: usize, letter: DeadLetter) -> Self {
        Self {
            source: DeadSource::Inbox,
            pipeline: None,
            consumer: Some(letter.consumer),
            scope: Some(letter.tenant),
            id: letter.id.to_string(),
            message_id: letter.message_id.map(|id| id.to_string()),
            state: MessageState::of_letter(letter.resolved.map(|(resolution, _)| resolution)),
            topic: letter.topic,
            key: letter.key,
            kind: letter.kind,
            cause: Some(letter.reason.as_str().to_owned()),
            error: Some(letter.error),
            attempts: letter.attempts,
            deliveries: Some(letter.deliveries),
            due_in_seconds: None,
            origin: Some(letter.origin),
            header_names: letter.headers.into_iter().map(|(name, _)| name).collect(),
            payload_bytes: letter.payload_bytes,
            edited: false,
            edited_at: None,
            requeue_requested_by: None,
            died_again: false,
            since: letter.dead_at,
            changed_at: letter.resolved.map_or(letter.dead_at, |(_, at)| at),
            row: Row::Inbox(place, letter.id),
            seq: letter.seq,
        }
    }

    /// Returns the parts of a dead letter that a decision compares; `None` for an entry of an
    /// outbox.
    pub(crate) fn seen(&self) -> Option<SeenLetter> {
        let Row::Inbox(_, id) = self.row else { return None };
        let reason = self.cause.as_deref().and_then(Reason::from_word)?;
        Some(SeenLetter { id, reason, deliveries: self.deliveries? })
    }

    /// Returns its pipeline or consumer.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.pipeline.as_deref().or(self.consumer.as_deref()).unwrap_or_default()
    }

    /// Returns its last error for a list, without the message id and the topic with which some
    /// begin: the list has both beside it.
    #[must_use]
    pub fn error_in_list(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        let Some(id) = &self.message_id else { return Some(error) };
        let begin = format!("message {id} for topic {} ", self.topic);
        Some(error.strip_prefix(&*begin).unwrap_or(error))
    }

    /// Returns whether an operator may decide about it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state == MessageState::Dead
    }

    /// Returns its state for people: `dead again` only after an operator's requeue, with a request
    /// that its consumer has not carried out yet.
    #[must_use]
    pub fn state_told(&self) -> String {
        let state = if self.is_dead() && self.died_again { DEAD_AGAIN } else { self.state.as_str() };
        match &self.requeue_requested_by {
            Some(actor) => format!("{state}, requeue requested by {actor}"),
            None => state.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::entry;
    use super::*;

    /// Goal: `dead again` is said only of a message that an operator has requeued. Oracle: the
    /// words for a first death, for a later one, and for what is retried after a requeue.
    #[test]
    fn only_a_requeued_message_is_dead_again() {
        let died = |died_again, state| DeadMessage { died_again, state, ..entry(7) };
        assert_eq!(died(false, MessageState::Dead).state_told(), "dead");
        assert_eq!(died(true, MessageState::Dead).state_told(), "dead again");
        assert_eq!(died(true, MessageState::Retrying).state_told(), "retrying");
        let asked =
            DeadMessage { requeue_requested_by: Some(String::from("ann")), ..died(true, MessageState::Dead) };
        assert_eq!(asked.state_told(), "dead again, requeue requested by ann");
    }

    #[test]
    fn an_error_in_a_list_does_not_begin_with_the_id() {
        let with = |error: &str| DeadMessage {
            message_id: Some(String::from("01a20909")),
            topic: String::from("orders"),
            error: Some(error.to_owned()),
            ..entry(7)
        };
        let large = "message 01a20909 for topic orders has 1200571 bytes with its envelope";
        assert_eq!(with(large).error_in_list(), Some("has 1200571 bytes with its envelope"));
        let nameless = DeadMessage { message_id: None, ..with(large) };
        assert_eq!(nameless.error_in_list(), Some(large));
        for kept in ["message 2 for topic orders is lost", "no queue is bound", "message 01a20909"] {
            assert_eq!(with(kept).error_in_list(), Some(kept));
        }
        assert_eq!(DeadMessage { error: None, ..entry(7) }.error_in_list(), None);
    }

    #[test]
    fn a_missing_topic_is_no_fault_of_an_operator() {
        for (stored, read) in [("operator", "setup"), ("broker", "broker"), ("too_old", "too_old")] {
            assert_eq!((cause_for_people(stored), cause_for_database(read)), (read, stored));
            // Both words are taken.
            assert_eq!((cause_for_people(read), cause_for_database(stored)), (read, stored));
        }
    }
}
