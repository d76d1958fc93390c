//! The whole history of one message: where it was enqueued, whether it was published, and which
//! consumers applied it.
//!
//! The outbox stores no time of publishing: an entry is published when the relay's cursor has
//! passed it and no exception is recorded for it. So the history only has a time by which it was
//! published.

mod consumers;
mod outbox;

use std::collections::BTreeSet;

use inbox::DeadLetterId;
use outbox_log::EntryId;
use outbox_log::entries::{EntryRef, FoundEntry};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::audit::{self, AuditLine};
use crate::dead::MessageRef;
use crate::error::{Candidate, OperateError};
use crate::message_state::MessageState;
use crate::operator::{Operator, Role};
use crate::places::{OutboxPlace, Places};
use crate::seconds;
use crate::turns::in_turns;
pub use consumers::InboxPart;
use consumers::{at_consumers, owner};
use outbox::outbox_part;
pub(crate) use outbox::state;
pub use outbox::{BEHIND, Blocker, OutboxPart};

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
    let candidate = |(place, entry): &(&OutboxPlace, FoundEntry)| Candidate {
        pipeline: place.pipeline.to_string(),
        message_id: entry.message_id.clone(),
    };
    let candidates: Vec<Candidate> = found.iter().map(candidate).collect();
    let told: Vec<String> =
        candidates.iter().map(|it| format!("{} in {}", it.message_id, it.pipeline)).collect();
    let text = format!("{asked} matches {} messages: {}", ids.len(), told.join(", "));
    Err(OperateError::ambiguous(text, candidates))
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
            let whose =
                format_args!("{asked} was not found, and the log of {} is incomplete", place.pipeline);
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
    use crate::sample::Sample;

    /// Each outbox has its own positions. Oracle: the message ids of both.
    #[tokio::test]
    async fn a_position_in_two_outboxes_names_both_messages() {
        let samples = [Sample::open().await, Sample::open().await];
        let mut places = Places::new();
        for sample in &samples {
            sample.run("INSERT INTO outbox_message (topic, payload) VALUES ('t', x'')").await;
            places = places.outbox(&sample.pipeline);
        }
        let asked: MessageRef = "1".parse().unwrap();
        let error = story(&places, &Operator::new("ann", Role::Viewer), &asked).await.unwrap_err();
        assert!(error.to_string().starts_with("1 matches 2 messages: "), "{error}");
        let named = error.candidates().iter().map(|it| &*it.message_id).collect::<BTreeSet<_>>();
        assert!(named.len() == 2 && named.iter().all(|id| Uuid::parse_str(id).is_ok()), "{named:?}");
    }
}
