//! The messages of a decision, before it is taken.

use outbox_log::entries::EntryRef;
use outbox_log::{EntryId, ExceptionState};
use serde::Serialize;

use super::decide::Change;
use super::filter::{Filter, MessageRef};
use super::list::{Listed, States, find};
use super::message::{DeadMessage, DeadSource, Row};
use super::outcome::outcome;
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
    /// Whether the filter chose more than one decision may cover.
    #[serde(skip)]
    pub more: bool,
    /// Whether each message was named by its id.
    #[serde(skip)]
    pub(super) is_named: bool,
}

/// The help for an id that names no dead message.
const NOT_DEAD: &str = "`relay dead list` shows dead messages, and with --state other parked ones";

/// Finds the messages of a decision: dead ones and, if they are named by id and the decision
/// permits it, entries that are retried without success until an operator acts. Changes nothing.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when a place does not answer, when a named message is not dead, or when an id
/// names several messages.
pub async fn plan(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    change: &Change,
) -> Result<Plan, OperateError> {
    plan_at_most(places, operator, filter, change, usize::MAX).await
}

/// Like [`plan`], for the first `limit` messages that the filter chooses. [`Plan::more`] shows
/// whether there are others. Cancel-safe.
///
/// # Errors
/// Those of [`plan`].
pub async fn plan_at_most(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    change: &Change,
    limit: usize,
) -> Result<Plan, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let found = find(places, filter, States::Dead, limit.saturating_add(1)).await;
    let Listed { mut messages, away, .. } = found;
    if let Some(error) = OperateError::all_of(away) {
        if places.count() == 1 {
            return Err(error);
        }
        let help = "a decision needs every database that may have such a message: restrict it to a database that answers, with --source outbox, --source inbox or --inbox, or with --pipeline and the message's position in the log";
        return Err(error.with_help(help));
    }
    if change.takes_retrying() {
        add_waiting(places, filter, &mut messages).await;
    }
    check_named(places, filter, &messages).await?;
    let more = messages.len() > limit;
    messages.truncate(limit);
    if more {
        check_part(change, &messages)?;
    }
    sort(&mut messages);
    let first = if more { "the first " } else { "" };
    let selection = format!("{filter}: {first}{} chosen", messages.len());
    Ok(Plan { selection, messages, more, is_named: !filter.ids.is_empty() })
}

/// Refuses to discard only these of the messages that a filter chose, if some are of an inbox: what
/// is held behind them would take effect, although it was to be discarded too.
fn check_part(change: &Change, messages: &[DeadMessage]) -> Result<(), OperateError> {
    if *change != Change::Discard || messages.iter().all(|message| message.source != DeadSource::Inbox) {
        return Ok(());
    }
    let text = format!(
        "more than {} messages match, and some are dead letters of an inbox: messages held behind the first ones would take effect",
        messages.len()
    );
    let help = "narrow the filter, or use `relay dead discard`, which discards all matching messages";
    Err(OperateError::refused(text, help))
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

/// Adds the named entries that are retried without success until an operator acts.
async fn add_waiting(places: &Places, filter: &Filter, messages: &mut Vec<DeadMessage>) {
    let is_missing = |id: &&MessageRef| !messages.iter().any(|message| id.names(message));
    let ids: Vec<MessageRef> = filter.ids.iter().filter(is_missing).cloned().collect();
    if ids.is_empty() {
        return;
    }
    let named = Filter { ids, ..filter.clone() };
    let retrying = find(places, &named, States::Parked(ExceptionState::Retrying), usize::MAX).await;
    messages.extend(retrying.messages.into_iter().filter(DeadMessage::waits_for_operator));
    messages.sort_by_key(|message| message.row);
}

/// Returns an error for ids that name no message to decide about, or several.
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
            return Ok(Some(if entry.is_passed { "published" } else { "the relay has not read it yet" }));
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
        MessageState::Retrying if message.waits_for_operator() => {
            String::from("retrying: the relay retries it automatically, unless it is discarded")
        }
        MessageState::Retrying => String::from("retrying: the relay retries it automatically"),
        MessageState::Held => String::from("held: it is published once the messages before it are published"),
        MessageState::Scheduled => String::from("scheduled: it is published at its time"),
        _ => closed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead::sample::entry;

    #[test]
    fn no_part_of_what_may_hold_others_is_discarded() {
        let letter = DeadMessage { source: DeadSource::Inbox, ..entry(2) };
        let requeue = Change::Requeue { accept_late: false };
        assert!(check_part(&Change::Discard, &[entry(1), entry(2)]).is_ok());
        assert!(check_part(&requeue, std::slice::from_ref(&letter)).is_ok());
        let refused = check_part(&Change::Discard, &[entry(1), letter]).unwrap_err().to_string();
        assert!(refused.contains("more than 2 messages match"), "{refused}");
    }
}
