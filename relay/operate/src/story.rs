//! The whole history of one message: where it was enqueued, whether it was published, and which
//! consumers applied it.
//!
//! The outbox stores no time of publishing: an entry is published when the relay's cursor has
//! passed it and no exception is recorded for it. So the history only has a time by which it was
//! published.

use std::collections::BTreeSet;

use inbox::{DeadLetterId, Known, KnownState, Reason};
use outbox_log::entries::{EntryRef, Extent, FoundEntry};
use outbox_log::{EntryId, ExceptionState, Pause, PauseScope};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::audit::{self, AuditLine};
use super::dead::list::{States, find};
use super::dead::{DeadMessage, DeadSource, Filter, MessageRef};
use super::error::OperateError;
use super::failures::FailedAttempts;
use super::message_state::MessageState;
use super::operator::{Operator, Role};
use super::places::{InboxPlace, OutboxPlace, Places};
use super::seconds;
use super::status::BrokerError;
use super::turns::in_turns;

/// The story of one message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Story {
    /// Its message id; `None` for a delivery that had none.
    pub message_id: Option<String>,
    /// Its entry in each outbox that has it.
    pub outboxes: Vec<OutboxPart>,
    /// Each consumer that knows it, and configured consumers that do not although they apply its
    /// topic from a pipeline that publishes it. Consumers of other pipelines are left out.
    pub inboxes: Vec<InboxPart>,
    /// The decisions about it, latest first.
    pub decisions: Vec<AuditLine>,
    /// The errors of unreachable databases.
    pub away: Vec<String>,
}

impl Story {
    /// Returns the text for a message that no outbox has, for people. A database that did not
    /// answer is not reported as empty.
    #[must_use]
    pub fn no_outbox_text(&self) -> &'static str {
        if self.away.is_empty() {
            "in none of the outboxes: it comes from another system, or retention has deleted it"
        } else {
            "in none of the outboxes that answer"
        }
    }

    /// Returns the text for a message that no consumer knows, for people.
    #[must_use]
    pub fn no_inbox_text(&self) -> &'static str {
        if self.away.is_empty() {
            "no inbox of its pipeline is configured, or none has seen the message"
        } else {
            "none of the inboxes that answer has seen the message"
        }
    }
}

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

/// The beginning of [`OutboxPart::because`] for a held message; the place in the log of
/// [`OutboxPart::behind`] follows.
pub const BEHIND: &str = "it waits behind ";

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

impl OutboxPart {
    /// Returns whether its content is shown as it was before an edit.
    #[must_use]
    pub fn is_before_edit(&self) -> bool {
        self.edited && self.parked_since.is_none()
    }
}

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
    /// The ordering key whose dead letters it waits behind, while it is held.
    pub held_by_key: Option<String>,
}

/// Returns the history of a message. Unreachable databases do not hide the others. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view messages, or when no place knows the message: it
/// was never enqueued, was removed by retention, or is in a place that does not answer. Also when a
/// place in the log names different messages in different outboxes.
pub async fn story(places: &Places, operator: &Operator, asked: &MessageRef) -> Result<Story, OperateError> {
    operator.permit(Role::Viewer, "view messages")?;
    let which = entry_ref(asked)?;
    let mut away = places.away.clone();
    let mut found = look_up(places, which, &mut away).await;
    let mut id = asked.uuid();
    if found.is_empty()
        && let Some(uuid) = id
        && let Some(of_letter) = letter_of(places, uuid, &mut away).await
    {
        id = of_letter;
        if let Some(message) = of_letter {
            found = look_up(places, EntryRef::MessageId(message), &mut away).await;
        }
    }
    if let Some((_, entry)) = found.first() {
        id = Uuid::parse_str(&entry.message_id).ok();
    }
    check_unique(asked, &found)?;
    let inboxes = match id {
        Some(id) => at_consumers(places, id, asked, &found, &mut away).await,
        None => Vec::new(),
    };
    let is_known = |part: &InboxPart| !matches!(part.state, MessageState::NotSeen | MessageState::Forgotten);
    if found.is_empty() && !inboxes.iter().any(is_known) {
        return Err(match OperateError::all_of(away) {
            Some(error) => error,
            None => unknown(places, asked, id).await,
        });
    }
    let decisions = decisions(places, &inboxes, id, &mut away).await;
    let applied_at =
        inboxes.iter().filter(|part| part.state == MessageState::Applied).filter_map(|part| part.at).min();
    let looks = found.into_iter().map(|(place, entry)| outbox_part(place, entry, applied_at)).collect();
    let mut outboxes = Vec::new();
    for (part, errors) in in_turns(looks).await {
        outboxes.push(part);
        away.extend(errors);
    }
    away.dedup();
    let away = away.iter().map(ToString::to_string).collect();
    Ok(Story { message_id: id.map(|id| id.to_string()), outboxes, inboxes, decisions, away })
}

/// Parses an id: a position in the log, or a UUID.
fn entry_ref(asked: &MessageRef) -> Result<EntryRef, OperateError> {
    asked.place().map(|id| EntryRef::Id(EntryId(id))).or(asked.uuid().map(EntryRef::MessageId)).ok_or_else(
        || {
            let help =
                "give a position in the log (a number), a message id or the id of a dead letter (UUIDs); \
                 `relay search --key KEY` finds the messages of an ordering key";
            OperateError::refused(format_args!("{asked} is not a message id"), help)
        },
    )
}

async fn look_up<'a>(
    places: &'a Places,
    which: EntryRef,
    away: &mut Vec<OperateError>,
) -> Vec<(&'a OutboxPlace, FoundEntry)> {
    let looks = places.outboxes.iter().map(|place| place.entries.find(&place.pipeline, which)).collect();
    let mut found = Vec::new();
    for (place, entries) in places.outboxes.iter().zip(in_turns(looks).await) {
        match entries {
            Ok(entries) => found.extend(entries.into_iter().map(|entry| (place, entry))),
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    found
}

/// Returns the message id of a dead letter with this id. The inner `None` means a dead letter
/// without one.
async fn letter_of(places: &Places, id: Uuid, away: &mut Vec<OperateError>) -> Option<Option<Uuid>> {
    let looks = places.inboxes.iter().map(|place| place.database.letter(DeadLetterId(id))).collect();
    let mut found = None;
    for (place, letter) in places.inboxes.iter().zip(in_turns(looks).await) {
        match letter {
            Ok(letter) => found = found.or(letter),
            Err(error) => away.push(error.about(owner(place))),
        }
    }
    found.map(|letter| letter.message_id.map(|id| id.as_uuid()))
}

pub(super) fn check_unique(
    asked: &MessageRef,
    found: &[(&OutboxPlace, FoundEntry)],
) -> Result<(), OperateError> {
    let ids: BTreeSet<&str> = found.iter().map(|(_, entry)| entry.message_id.as_str()).collect();
    if ids.len() < 2 {
        return Ok(());
    }
    let told: Vec<String> =
        found.iter().map(|(place, entry)| format!("{} in {}", entry.message_id, place.pipeline)).collect();
    let text = format!("{asked} matches {} messages: {}", ids.len(), told.join(", "));
    Err(OperateError::refused(text, "add --pipeline, or give the message id"))
}

fn owner(place: &InboxPlace) -> String {
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

async fn at_consumers(
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
        ..nothing(&letter.consumer.unwrap_or_default())
    }
}

/// Reads the decisions about a message and its dead letters.
async fn decisions(
    places: &Places,
    inboxes: &[InboxPart],
    id: Option<Uuid>,
    away: &mut Vec<OperateError>,
) -> Vec<AuditLine> {
    let ids: BTreeSet<Uuid> = inboxes
        .iter()
        .filter_map(|part| part.dead_letter.as_deref().and_then(|id| Uuid::parse_str(id).ok()))
        .collect();
    let letters: Vec<DeadLetterId> = ids.into_iter().map(DeadLetterId).collect();
    let audited = audit::about(places, id, &letters).await;
    away.extend(audited.away);
    audited.lines
}

async fn outbox_part(
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
    let state = match parked {
        Some(parked) => parked.state.into(),
        None if entry.is_discarded => MessageState::Discarded,
        None => by_cursor(&cursor, entry.is_passed, place.leaves_out(&entry.topic, &entry.labels)),
    };
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
        edited: parked.is_some_and(|parked| parked.is_edited) || entry.is_edited,
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

/// Whose history the cursor of a relay belongs to.
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

/// The reason for an entry that the cursor has passed, while nobody could ask whose cursor it is.
const UNREAD: &str = "the relay's cursor has passed it, but whether the cursor belongs to this server could not be read: look again";

/// Returns why an entry waits.
fn because(
    entry: &FoundEntry,
    state: MessageState,
    pauses: &[Pause],
    refusal: Option<&BrokerError>,
) -> Option<String> {
    if matches!(state, MessageState::Published | MessageState::Discarded | MessageState::Dead) {
        return None;
    }
    if state == MessageState::Unknown {
        let text = "the cursor belongs to another server's history: the relay's next leader compares the two";
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
            format!("{BEHIND}{}, which is {}: {error}", behind.id, behind.state)
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

fn made_at(id: Uuid) -> Option<OffsetDateTime> {
    let (seconds, _) = id.get_timestamp()?.to_unix();
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()
}

/// Returns the error for a message that none of the places knows: it never existed, or retention
/// has removed it.
async fn unknown(places: &Places, asked: &MessageRef, id: Option<Uuid>) -> OperateError {
    let mut kept = Vec::new();
    let mut may_be_removed = false;
    let looks = places.outboxes.iter().map(|place| place.entries.extent(&place.pipeline)).collect();
    for (place, extent) in places.outboxes.iter().zip(in_turns(looks).await) {
        let Ok(extent) = extent else { continue };
        if let Err(error) = extent.check_whole() {
            let whose = format_args!("{asked} was not found, and {} is not whole", place.pipeline);
            return OperateError::from(error).about(whose);
        }
        let Some(expired) = extent.expired_through else { continue };
        let is_older = match (id.and_then(made_at), asked.place()) {
            (Some(made_at), _) => made_at <= expired,
            (None, Some(number)) => extent.oldest.is_none_or(|(oldest, _)| number < oldest.0),
            (None, None) => false,
        };
        may_be_removed |= is_older;
        let expired = seconds::text(expired);
        kept.push(format!("{}: retention has deleted messages created until {expired}", place.pipeline));
    }
    let made_at = id.and_then(made_at).map(|at| format!(", created at {}", seconds::text(at)));
    let made_at = made_at.unwrap_or_default();
    let text = if may_be_removed {
        format!("{asked}{made_at} is no longer there, or never was: {}", kept.join("; "))
    } else {
        format!("{asked}{made_at} is in none of the searched outboxes and inboxes")
    };
    let help = "if the configuration names every outbox and inbox, it was never enqueued or was rolled back";
    OperateError::refused(text, if may_be_removed { "`relay retention` shows what is kept" } else { help })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing is called published by a cursor of which it could not be read whose it is, as
    /// after a restore. Oracle: the table of states.
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
}
