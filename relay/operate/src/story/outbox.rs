//! A message in an outbox: its state, the reason why it waits, and the time by which it was
//! published.

use outbox_log::entries::{Extent, FoundEntry};
use outbox_log::{ExceptionState, Pause, PauseScope};
use serde::Serialize;
use time::OffsetDateTime;

use crate::error::OperateError;
use crate::failures::FailedAttempts;
use crate::message_state::{DISCARDED, MessageState};
use crate::places::OutboxPlace;
use crate::seconds;
use crate::status::BrokerError;

/// A message in an outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxPart {
    /// The pipeline.
    pub pipeline: String,
    /// Its position in the log.
    pub id: i64,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its event type.
    pub kind: String,
    /// Its content type; `None` if its content no longer exists.
    pub content_type: Option<String>,
    /// The size of its payload; `None` if its content no longer exists.
    pub payload_bytes: Option<u64>,
    /// The names of its headers.
    pub header_names: Vec<String>,
    /// Its W3C trace context.
    pub traceparent: Option<String>,
    /// The time when it was enqueued.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub enqueued_at: Option<OffsetDateTime>,
    /// The producer's transaction, if the database numbers transactions.
    pub transaction: Option<String>,
    /// The time before which it must not be published.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub deliver_at: Option<OffsetDateTime>,
    /// Its state.
    pub state: MessageState,
    /// The destination of the relay.
    pub destination: String,
    /// The latest time by which it was published; `None` when it was not.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub published_by: Option<OffsetDateTime>,
    /// The reason why it waits or is never published.
    pub because: Option<String>,
    /// The message that it waits behind, while it is held.
    pub behind: Option<Blocker>,
    /// Failed attempts that counted, while it is parked.
    pub attempts: Option<u32>,
    /// The last error, while it is parked; for a discarded message, the reason why it was dead.
    pub error: Option<String>,
    /// Its last ten errors while it is parked, latest first, with the numbers of the attempts.
    pub failures: Vec<FailedAttempts>,
    /// The time since which it is parked.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub parked_since: Option<OffsetDateTime>,
    /// Whether an operator has edited it. Once it is published, only the enqueued content is kept:
    /// payload and headers are those before the edit.
    pub edited: bool,
    /// Whether its row is still in the log, so that it can be replayed.
    pub in_log: bool,
}

impl OutboxPart {
    /// Returns whether its content is shown as it was before an edit.
    #[must_use]
    pub fn is_before_edit(&self) -> bool {
        self.edited && self.parked_since.is_none()
    }
}

/// The beginnings of [`OutboxPart::because`] for a held message, behind a message of its key or
/// behind another one of its topic; the place in the log of [`OutboxPart::behind`] follows. Whether
/// a failure concerned the whole topic is not stored.
pub const BEHIND: [&str; 2] = ["it waits behind ", "its topic may be stopped by "];

/// The message that a held one waits behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// Its position in the log of the same outbox.
    pub id: i64,
    /// Its state: `dead` or `retrying`.
    pub state: String,
    /// Its last error.
    pub error: Option<String>,
}

pub(super) async fn outbox_part(
    place: &OutboxPlace,
    entry: FoundEntry,
    applied_at: Option<OffsetDateTime>,
) -> (OutboxPart, Vec<OperateError>) {
    let mut away = Vec::new();
    let extent = match place.entries.extent(&place.pipeline).await {
        Ok(extent) => Some(extent),
        Err(error) => {
            away.push(OperateError::from(error).about(&place.pipeline));
            None
        }
    };
    let parked = entry.parked.as_ref();
    let cursor = Cursor::of(extent.as_ref());
    let state = state(place, &entry, extent.as_ref());
    let refusal = extent.as_ref().and_then(Extent::broker_trouble).map(BrokerError::from);
    let stored_at = extent.and_then(|extent| extent.checkpoint_at);
    let published_by =
        if state == MessageState::Published { stored_at.into_iter().chain(applied_at).min() } else { None };
    let pauses = match place.log.pauses(&place.pipeline).await {
        Ok(pauses) => pauses,
        Err(error) => {
            away.push(OperateError::from(error).about(&place.pipeline));
            Vec::new()
        }
    };
    let because = match state {
        MessageState::LeftOut => {
            let text = "the pipeline publishes only";
            let before = "; an earlier filter must have included it";
            Some(format!("{text} {}{}", place.filter, if applied_at.is_some() { before } else { "" }))
        }
        MessageState::Unknown if cursor == Cursor::Unread => Some(String::from(UNREAD)),
        _ => because(&entry, state, &pauses, refusal.as_ref()),
    };
    let part = OutboxPart {
        pipeline: place.pipeline.to_string(),
        id: entry.id.0,
        destination: place.destination(),
        state,
        published_by,
        because,
        behind: parked.and_then(|parked| parked.behind.as_ref()).map(|behind| Blocker {
            id: behind.id.0,
            state: behind.state.clone(),
            error: behind.error.clone(),
        }),
        attempts: parked.map(|parked| parked.attempts),
        error: parked.and_then(|parked| parked.error.clone()).or_else(|| {
            let is_discarded = state == MessageState::Discarded;
            entry.discarded_error.clone().filter(|_| is_discarded)
        }),
        failures: parked.map(FailedAttempts::of).unwrap_or_default(),
        parked_since: parked.map(|parked| parked.since),
        edited: parked.is_some_and(|parked| parked.edited_at.is_some()) || entry.is_edited,
        in_log: entry.is_in_log,
        topic: entry.topic,
        key: entry.key,
        header_names: entry.labels.header_names(),
        kind: entry.labels.kind,
        content_type: entry.content_type,
        payload_bytes: entry.payload_bytes,
        traceparent: entry.traceparent,
        enqueued_at: entry.enqueued_at,
        transaction: entry.transaction,
        deliver_at: entry.deliver_at,
    };
    (part, away)
}

/// The server whose history the cursor of a relay belongs to.
#[derive(Debug, PartialEq, Eq)]
enum Cursor {
    OfThisServer,
    OfAnother,
    /// The database did not answer.
    Unread,
}

impl Cursor {
    fn of(extent: Option<&Extent>) -> Self {
        match extent {
            Some(extent) if extent.is_of_this_server => Self::OfThisServer,
            Some(_) => Self::OfAnother,
            None => Self::Unread,
        }
    }
}

/// Returns the state of an entry. Without an extent, it is not known to which history the cursor
/// belongs.
pub(crate) fn state(place: &OutboxPlace, entry: &FoundEntry, extent: Option<&Extent>) -> MessageState {
    match &entry.parked {
        Some(parked) => parked.state.into(),
        None if entry.is_discarded => MessageState::Discarded,
        None => {
            let is_left_out = place.leaves_out(&entry.topic, &entry.labels);
            by_cursor(&Cursor::of(extent), entry.is_passed, is_left_out)
        }
    }
}

/// Returns the state of an entry that is neither parked nor discarded. A passed entry counts as
/// published only by a cursor that is known to belong to this server.
fn by_cursor(cursor: &Cursor, is_passed: bool, is_left_out: bool) -> MessageState {
    match cursor {
        Cursor::OfAnother => MessageState::Unknown,
        Cursor::Unread if is_passed => MessageState::Unknown,
        _ if is_left_out => MessageState::LeftOut,
        _ if is_passed => MessageState::Published,
        _ => MessageState::Waiting,
    }
}

/// The reason for an entry that the cursor has passed, while it is not known to which history the
/// cursor belongs.
const UNREAD: &str = "the relay's cursor has passed it, but whether the cursor belongs to this server could not be read: look again";

/// Returns the remark about every message in a state, if there is one.
fn said_of(state: MessageState) -> Option<&'static str> {
    match state {
        MessageState::Discarded => Some(DISCARDED),
        MessageState::Unknown => {
            Some("the cursor belongs to another server's history: the relay's next leader compares the two")
        }
        _ => None,
    }
}

/// Returns why an entry waits, or is not sent.
fn because(
    entry: &FoundEntry,
    state: MessageState,
    pauses: &[Pause],
    refusal: Option<&BrokerError>,
) -> Option<String> {
    if matches!(state, MessageState::Published | MessageState::Dead) {
        return None;
    }
    if let Some(text) = said_of(state) {
        return Some(String::from(text));
    }
    let is_paused = |pause: &&Pause| match &pause.scope {
        PauseScope::Pipeline => true,
        PauseScope::Topic(topic) => *topic == entry.topic,
        PauseScope::Key(key) => entry.key.as_ref() == Some(key),
    };
    if let Some(pause) = pauses.iter().find(is_paused) {
        let since = seconds::text(pause.since);
        return Some(format!("{} is paused by {} since {since}: {}", pause.scope, pause.actor, pause.reason));
    }
    let refused = || refusal.map(BrokerError::told);
    let Some(parked) = &entry.parked else {
        return refused().or_else(|| Some(String::from("the relay has not read it yet")));
    };
    let due = parked.due_at.map(seconds::text);
    Some(match (parked.state, &parked.behind, due) {
        (ExceptionState::Held, Some(behind), _) => {
            let error = behind.error.as_deref().unwrap_or("no error is stored");
            let [of_key, of_topic] = BEHIND;
            let begin = if behind.is_of_its_key { of_key } else { of_topic };
            format!("{begin}{}, which is {}: {error}", behind.id, behind.state)
        }
        (ExceptionState::Held, None, _) => refused()
            .unwrap_or_else(|| String::from("it is published once the messages before it are published")),
        (ExceptionState::Scheduled, _, Some(due)) => format!("it is published at {due}"),
        (ExceptionState::Retrying, _, Some(due)) => {
            refused().unwrap_or_else(|| format!("it will be retried at {due}"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a message does not count as published because of a cursor whose history could not be
    /// read, as after a restore. Oracle: the table of states.
    #[test]
    fn a_passed_entry_is_published_only_by_a_cursor_of_this_server() {
        use Cursor::{OfAnother, OfThisServer, Unread};
        use MessageState::{LeftOut, Published, Unknown, Waiting};
        assert_eq!([true, false].map(|passed| by_cursor(&OfThisServer, passed, false)), [Published, Waiting]);
        assert_eq!([true, false].map(|passed| by_cursor(&OfAnother, passed, false)), [Unknown; 2]);
        assert_eq!([true, false].map(|passed| by_cursor(&Unread, passed, false)), [Unknown, Waiting]);
        assert_eq!([true, false].map(|passed| by_cursor(&Unread, passed, true)), [Unknown, LeftOut]);
        assert_eq!(by_cursor(&OfThisServer, true, true), LeftOut);
    }

    /// Goal: a discarded message is not shown as one that never arrived, because a confirmation
    /// that comes after the decision is not stored. Oracle: the reason that is shown.
    #[test]
    fn a_discarded_message_may_have_arrived() {
        let text = said_of(MessageState::Discarded).unwrap();
        assert!(text.contains("may have arrived"), "{text}");
        assert_eq!(said_of(MessageState::Retrying), None);
    }
}
