//! A message at the consumers: those that know it, and those that are still to apply it.

use inbox::{Known, KnownState, Reason};
use outbox_log::entries::FoundEntry;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::made_at;
use crate::dead::list::{States, find};
use crate::dead::{DeadMessage, DeadSource, Filter, MessageRef};
use crate::error::OperateError;
use crate::message_state::MessageState;
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;
use crate::turns::in_turns;

/// A message at a consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InboxPart {
    /// The consumer.
    pub consumer: String,
    /// The scope.
    pub scope: Option<String>,
    /// Its state; of a dead letter that was closed, the way in which it was closed.
    pub state: MessageState,
    /// The time when it reached this state.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub at: Option<OffsetDateTime>,
    /// The size of the stored result.
    pub result_bytes: Option<u64>,
    /// Failed attempts that counted.
    pub attempts: Option<u32>,
    /// The time of the next attempt.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub next_at: Option<OffsetDateTime>,
    /// The last error.
    pub error: Option<String>,
    /// The id of its dead letter.
    pub dead_letter: Option<String>,
    /// The ordering key whose dead letters it waits behind, while it is held: those of its topic
    /// and scope.
    pub held_by_key: Option<String>,
    /// The topic or queue of its dead letter.
    pub topic: Option<String>,
}

pub(super) async fn at_consumers(
    places: &Places,
    id: Uuid,
    asked: &MessageRef,
    found: &[(&OutboxPlace, FoundEntry)],
    away: &mut Vec<OperateError>,
) -> Vec<InboxPart> {
    let mut parts: Vec<InboxPart> = Vec::new();
    let asked_places: Vec<&InboxPlace> =
        places.inboxes.iter().filter(|place| may_know(place, found)).collect();
    let mut unanswered: Vec<&InboxPlace> = Vec::new();
    let looks = asked_places.iter().map(|place| place.database.known(id)).collect();
    for (place, known) in asked_places.iter().zip(in_turns(looks).await) {
        let known = match known {
            Ok(known) => known,
            Err(error) => {
                away.push(error.about(owner(place)));
                unanswered.push(place);
                continue;
            }
        };
        let is_here = |known: &Known| place.holds(&known.consumer, &known.tenant);
        parts.extend(known.into_iter().filter(is_here).filter_map(inbox_part));
    }
    let mut ids: Vec<MessageRef> = id.to_string().parse().into_iter().collect();
    if asked.uuid() != Some(id) {
        ids.push(asked.clone());
    }
    let filter = Filter { source: Some(DeadSource::Inbox), ids, ..Filter::default() };
    let letters = find(places, &filter, States::Any, usize::MAX).await;
    away.extend(letters.away);
    let is_asked = |letter: &DeadMessage| {
        let consumer = letter.consumer.as_deref().unwrap_or_default();
        let scope = letter.scope.as_deref().unwrap_or_default();
        asked_places.iter().any(|place| place.holds(consumer, scope))
    };
    parts.extend(letters.messages.into_iter().filter(is_asked).map(letter_part));
    for place in asked_places.into_iter().filter(|place| is_to_apply(place, found)) {
        let Some(consumer) = &place.consumer else { continue };
        // A database that does not answer may know the message.
        if unanswered.iter().any(|other| std::ptr::eq(*other, place)) {
            continue;
        }
        if parts.iter().any(|part| part.consumer == consumer.as_str()) {
            continue;
        }
        let remembers_from = place.database.remembers_from();
        let is_older = made_at(id).is_some_and(|at| at < remembers_from);
        let is_forgotten = is_older && place.database.has_memory();
        let error = is_forgotten.then(|| {
            format!("this inbox remembers messages created since {}", seconds::text(remembers_from))
        });
        let state = if is_forgotten { MessageState::Forgotten } else { MessageState::NotSeen };
        parts.push(InboxPart { state, error, ..nothing(consumer.as_str()) });
    }
    let mut unique: Vec<InboxPart> = Vec::with_capacity(parts.len());
    for part in parts {
        if !unique.contains(&part) {
            unique.push(part);
        }
    }
    unique
}

pub(super) fn owner(place: &InboxPlace) -> String {
    place.consumer.as_ref().map_or_else(|| String::from("inbox"), |name| format!("inbox of {name}"))
}

/// Returns whether a consumer applies messages of a pipeline whose outbox has the message. A
/// message that is in no outbox may be at any consumer.
fn may_know(place: &InboxPlace, found: &[(&OutboxPlace, FoundEntry)]) -> bool {
    found.is_empty() || found.iter().any(|(outbox, _)| place.is_of(outbox.pipeline.as_str()))
}

/// Returns whether a consumer is to apply the message: one of its pipelines publishes it, and it
/// applies the topic.
fn is_to_apply(place: &InboxPlace, found: &[(&OutboxPlace, FoundEntry)]) -> bool {
    let is_of = |(outbox, entry): &(&OutboxPlace, FoundEntry)| {
        let leaves_out = entry.parked.is_none() && outbox.leaves_out(&entry.topic, &entry.labels);
        place.is_of(outbox.pipeline.as_str()) && place.takes_topic(&entry.topic) && !leaves_out
    };
    found.is_empty() || found.iter().any(is_of)
}

fn nothing(consumer: &str) -> InboxPart {
    InboxPart {
        consumer: consumer.to_owned(),
        scope: None,
        state: MessageState::NotSeen,
        at: None,
        result_bytes: None,
        attempts: None,
        next_at: None,
        error: None,
        dead_letter: None,
        held_by_key: None,
        topic: None,
    }
}

/// Converts a row about a message. Dead letters have their own list, with more details.
fn inbox_part(Known { consumer, tenant, state }: Known) -> Option<InboxPart> {
    let part = InboxPart { scope: Some(tenant).filter(|tenant| !tenant.is_empty()), ..nothing(&consumer) };
    match state {
        KnownState::Applied { at, result_bytes } => {
            Some(InboxPart { state: MessageState::Applied, at: Some(at), result_bytes, ..part })
        }
        KnownState::Retrying(attempt) => Some(InboxPart {
            state: MessageState::Retrying,
            at: Some(attempt.first_failed_at),
            attempts: Some(attempt.attempts),
            next_at: Some(attempt.next_at),
            error: Some(attempt.last_error),
            ..part
        }),
        KnownState::Dead(_) => None,
    }
}

fn letter_part(letter: DeadMessage) -> InboxPart {
    let is_held =
        letter.state == MessageState::Dead && letter.cause.as_deref() == Some(Reason::Held.as_str());
    InboxPart {
        held_by_key: letter.key.filter(|_| is_held),
        scope: letter.scope.filter(|scope| !scope.is_empty()),
        state: letter.state,
        at: Some(letter.changed_at),
        attempts: Some(letter.attempts),
        error: letter.error,
        dead_letter: Some(letter.id),
        topic: Some(letter.topic),
        ..nothing(&letter.consumer.unwrap_or_default())
    }
}
