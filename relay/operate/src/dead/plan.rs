//! The messages of a decision, before it is taken.

use outbox_log::entries::EntryRef;
use outbox_log::{EntryId, ExceptionState};
use serde::Serialize;

use super::decide::Change;
use super::filter::{Filter, MessageRef};
use super::list::{Listed, States, find};
use super::message::{DeadMessage, DeadSource, Row};
use super::outcome::{described, outcome, state};
use crate::error::{OperateError, OperateErrorKind};
use crate::message_state::MessageState;
use crate::operator::{Operator, Role};
use crate::places::Places;
use crate::seconds;

/// The messages of a decision, in the order in which they are decided about. Messages of one key
/// keep their order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The filter, and the number of messages that it chose, for the audit.
    pub selection: String,
    /// The messages.
    pub messages: Vec<DeadMessage>,
    /// Whether each message was named by its id.
    #[serde(skip)]
    pub(super) is_named: bool,
}

/// Maximum messages of a plan, which are in memory with everything that is shown of them.
const PLANNED_MAX: usize = 10_000;

/// The help for an id that names no dead message.
const NOT_DEAD: &str = "`relay dead list` shows dead messages, and with --state other parked ones";

/// Finds the messages of a decision: dead ones and, if they are named by id and the decision
/// permits it, entries that are retried without success until an operator acts. Changes nothing.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when a place does not answer, when a named message is not dead, when an id
/// names several messages, or when more than 10,000 match: [`select`](super::select()) takes more.
pub async fn plan(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    change: &Change,
) -> Result<Plan, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let found = find(places, filter, States::Dead, PLANNED_MAX.saturating_add(1)).await;
    let Listed { mut messages, away, .. } = found;
    need_all(places, away)?;
    if messages.len() > PLANNED_MAX {
        let text = format!("more than {PLANNED_MAX} messages match; they are decided about one by one");
        return Err(OperateError::refused(text, "narrow the filter"));
    }
    if change.takes_retrying() {
        add_retried(places, filter, change, &mut messages).await;
    }
    check_named(places, filter, &messages).await?;
    sort(&mut messages);
    let selection = format!("{filter}: {} chosen", messages.len());
    Ok(Plan { selection, messages, is_named: !filter.ids.is_empty() })
}

/// Returns an error if a place does not answer: a decision needs every one.
pub(super) fn need_all(places: &Places, away: Vec<OperateError>) -> Result<(), OperateError> {
    let Some(error) = OperateError::all_of(away) else { return Ok(()) };
    if places.count() == 1 {
        return Err(error);
    }
    let help = "a decision needs every database that may have such a message: restrict it to a database that answers, with --source outbox, --source inbox or --inbox, or with --pipeline and the message's position in the log";
    Err(error.with_help(help))
}

/// Sorts the dead letters of each inbox, and so those of each key, by arrival. They are listed by
/// id, which follows the clocks of several processes. Entries of outboxes stay in front, in the
/// order of their logs.
fn sort(messages: &mut [DeadMessage]) {
    messages.sort_by_key(|message| match message.row {
        Row::Outbox(..) => None,
        Row::Inbox(place, _) => Some((place, message.seq)),
    });
}

/// Adds the named entries that are being retried and to which a change applies.
async fn add_retried(places: &Places, filter: &Filter, change: &Change, messages: &mut Vec<DeadMessage>) {
    let is_missing = |id: &&MessageRef| !messages.iter().any(|message| id.names(message));
    let ids: Vec<MessageRef> = filter.ids.iter().filter(is_missing).cloned().collect();
    if ids.is_empty() {
        return;
    }
    let named = Filter { ids, ..filter.clone() };
    let retrying = find(places, &named, States::Parked(ExceptionState::Retrying), usize::MAX).await;
    let takes = |message: &DeadMessage| {
        if *change == Change::Discard { message.is_retried() } else { message.waits_for_operator() }
    };
    messages.extend(retrying.messages.into_iter().filter(takes));
    messages.sort_by_key(|message| message.row);
}

/// Returns an error for an id that names no message to decide about, or more than one.
async fn check_named(places: &Places, filter: &Filter, found: &[DeadMessage]) -> Result<(), OperateError> {
    let mut missing = Vec::new();
    for id in &filter.ids {
        let named: Vec<&DeadMessage> = found.iter().filter(|message| id.names(message)).collect();
        if let [first, second, ..] = named[..] {
            let told = |message: &DeadMessage| format!("{} of {}", message.id, message.owner());
            let text = format!("{id} matches {} messages: {}, {}", named.len(), told(first), told(second));
            return Err(OperateError::refused(text, "add --source, --pipeline or --consumer"));
        }
        if named.is_empty() {
            missing.push(id.clone());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // Their other state shows what to do.
    let elsewhere = Filter { ids: missing.clone(), ..filter.clone() };
    let others = find(places, &elsewhere, States::Any, usize::MAX).await.messages;
    let mut told = Vec::with_capacity(missing.len());
    for id in &missing {
        told.push(match others.iter().find(|message| id.names(message)) {
            // For a discarded entry, the outbox's audit has the author.
            Some(message)
                if message.source == DeadSource::Inbox || message.state != MessageState::Discarded =>
            {
                format!("{id} ({})", meaning(message))
            }
            _ => match last_decision(places, id).await? {
                Some(decision) => format!("{id} ({decision})"),
                None => match standing(places, id).await? {
                    Some(standing) => format!("{id} ({standing})"),
                    None => format!("{id} (no such message: it was never here, or retention has deleted it)"),
                },
            },
        });
    }
    let text = format!("not dead: {}", told.join(", "));
    let kind = if others.is_empty() { OperateErrorKind::Refused } else { OperateErrorKind::Conflict };
    Err(OperateError::new(kind, text).with_help(NOT_DEAD))
}

/// Returns the last decision about an entry that is no longer dead, and the entry's state.
async fn last_decision(places: &Places, id: &MessageRef) -> Result<Option<String>, OperateError> {
    for place in &places.outboxes {
        if let Some(outcome) = outcome(place, id).await? {
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}

/// Returns the state of a message that is not parked; `None` if no outbox has it.
async fn standing(places: &Places, id: &MessageRef) -> Result<Option<&'static str>, OperateError> {
    let which = id.place().map(|id| EntryRef::Id(EntryId(id))).or(id.uuid().map(EntryRef::MessageId));
    let Some(which) = which else { return Ok(None) };
    for place in &places.outboxes {
        let found = place.entries.find(&place.pipeline, which).await?;
        if let Some(entry) = found.first() {
            return Ok(Some(described(state(place, entry).await?)));
        }
    }
    Ok(None)
}

/// Returns why a message cannot be decided about.
fn meaning(message: &DeadMessage) -> String {
    let closed = || format!("closed as {} at {}", message.state, seconds::text(message.changed_at));
    if message.source == DeadSource::Inbox {
        return closed();
    }
    match message.state {
        MessageState::Retrying => {
            String::from("retrying: the relay retries it automatically, unless it is discarded")
        }
        MessageState::Held => String::from("held: it is published once the messages before it are published"),
        MessageState::Scheduled => String::from("scheduled: it is published at its time"),
        _ => closed(),
    }
}
