//! The messages of a replay, before anything is sent.

use std::collections::{BTreeMap, HashSet};

use outbox_log::entries::{EntryName, EntryRef, Extent, FoundEntry, SelectedEntry, Selection, Standing};
use outbox_log::{EntryId, Pause, PauseScope};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::filter::ReplayFilter;
use crate::dead::MessageRef;
use crate::error::{OperateError, OperateErrorKind};
use crate::message_state::DISCARDED;
use crate::operator::{Operator, Role};
use crate::places::{OutboxPlace, Places};
use crate::seconds;

/// The messages that a replay sends. No message is added later: the relay's position is read once,
/// and messages that were parked or discarded at that time are not sent even if they are published
/// afterwards.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayPlan {
    /// The pipeline.
    pub pipeline: String,
    /// The filter, and the number of messages that it chose, for the audit.
    pub selection: String,
    /// Number of messages to send.
    pub chosen: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// Number of messages of each topic.
    pub topics: BTreeMap<String, u64>,
    /// Number of messages that match the filter but are not sent, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// The first message.
    pub first: Option<Edge>,
    /// The last message.
    pub last: Option<Edge>,
    /// The oldest kept entry, at which the replay begins if the filter has no beginning.
    pub kept_from: Option<Edge>,
    /// The time up to which retention has removed messages; `None` when it has removed nothing.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub removed_until: Option<OffsetDateTime>,
    #[serde(skip)]
    pub(crate) selected: Selection,
    #[serde(skip)]
    pub(crate) extent: Extent,
    /// Passed messages that were not published. 16 bytes for each parked message.
    #[serde(skip)]
    pub(crate) unpublished: HashSet<Uuid>,
}

/// The first or last entry of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Its position in the log.
    pub id: i64,
    /// The time when it was enqueued.
    #[serde(serialize_with = "seconds::serialize")]
    pub enqueued_at: OffsetDateTime,
}

/// Finds the messages that a replay would send. Sends nothing. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the outbox does not answer, when its log lacks a segment, when retention
/// has removed the beginning of the range, when a named message was not published, or when part of
/// the range is paused.
pub async fn plan(
    places: &Places,
    operator: &Operator,
    filter: &ReplayFilter,
) -> Result<ReplayPlan, OperateError> {
    operator.permit(Role::Viewer, "view messages")?;
    let place = places.only_outbox()?;
    find(place, filter).await.map_err(|error| error.about(&place.pipeline))
}

async fn find(place: &OutboxPlace, filter: &ReplayFilter) -> Result<ReplayPlan, OperateError> {
    let extent = place.entries.extent(&place.pipeline).await?;
    check_cursor(&extent)?;
    extent.check_whole()?;
    let mut selected = Selection {
        named: Vec::new(),
        topic: filter.topic.as_ref().map(|topic| topic.as_str().to_owned()),
        key: filter.key.as_ref().map(|key| key.as_str().to_owned()),
        first: filter.from_id.map(EntryId),
        last: filter.to_id.map(EntryId),
        since: filter.since.map(|since| since.at(extent.now)),
        until: filter.until.map(|until| until.at(extent.now)),
    };
    check_range(&extent, &selected)?;
    for id in &filter.ids {
        selected.named.push(named(place, &extent, id).await?);
    }
    let pauses = place.log.pauses(&place.pipeline).await?;
    let mut plan = ReplayPlan {
        pipeline: place.pipeline.to_string(),
        selection: String::new(),
        chosen: 0,
        bytes: 0,
        topics: BTreeMap::new(),
        skipped: BTreeMap::new(),
        first: None,
        last: None,
        kept_from: extent.oldest.map(|(id, enqueued_at)| Edge { id: id.0, enqueued_at }),
        removed_until: extent.expired_through,
        selected,
        extent,
        unpublished: HashSet::new(),
    };
    let mut after = EntryId::default();
    let mut refused = Vec::new();
    loop {
        let page = place.entries.select(&place.pipeline, &plan.extent, &plan.selected, after).await?;
        for entry in &page.entries {
            if entry.standing == Standing::Published && place.leaves_out(&entry.topic, &entry.labels) {
                if !plan.selected.named.is_empty() {
                    refused.push(format!("{} (excluded by the pipeline's filter)", entry.id));
                }
                *plan.skipped.entry(LEFT_OUT).or_default() += 1;
                continue;
            }
            if entry.standing != Standing::Published && !plan.selected.named.is_empty() {
                refused.push(format!("{} ({})", entry.id, meaning(entry.standing)));
            }
            plan.count(entry, &pauses)?;
        }
        after = page.seen_to;
        if page.exhausted {
            break;
        }
    }
    if !refused.is_empty() {
        let text = format!("not published yet: {}", refused.join(", "));
        let help = "only published messages can be replayed; `relay show` shows the history of each";
        return Err(OperateError::new(OperateErrorKind::Conflict, text).with_help(help));
    }
    plan.selection = format!("{filter}: {} chosen", plan.chosen);
    Ok(plan)
}

impl ReplayPlan {
    fn count(&mut self, entry: &SelectedEntry, pauses: &[Pause]) -> Result<(), OperateError> {
        if entry.standing != Standing::Published {
            // An entry that waits stays unpublished in the plan's extent.
            if entry.standing != Standing::Waiting {
                self.unpublished.insert(entry.message_id);
            }
            *self.skipped.entry(reason(entry.standing)).or_default() += 1;
            return Ok(());
        }
        check_pauses(entry, pauses)?;
        let edge = Some(Edge { id: entry.id.0, enqueued_at: entry.enqueued_at });
        self.first = self.first.or(edge);
        self.last = edge;
        self.chosen += 1;
        self.bytes += entry.payload_bytes;
        match self.topics.get_mut(&entry.topic) {
            Some(count) => *count += 1,
            None => _ = self.topics.insert(entry.topic.clone(), 1),
        }
        Ok(())
    }
}

/// Returns an error without a cursor of this server: it is unknown what was published.
fn check_cursor(extent: &Extent) -> Result<(), OperateError> {
    if !extent.has_cursor() {
        let help = "only published messages can be replayed: run `relay run` first";
        return Err(OperateError::refused("this relay has never led, so it has published nothing", help));
    }
    if !extent.is_of_this_server {
        let help = "start the relay, whose next leader compares cursor and log; then replay";
        let text =
            "the cursor belongs to another server's history, so it is unknown which messages were published";
        return Err(OperateError::refused(text, help));
    }
    Ok(())
}

/// Returns an error for a reversed range, or for one that begins where retention has removed
/// messages.
fn check_range(extent: &Extent, selected: &Selection) -> Result<(), OperateError> {
    if let (Some(first), Some(last)) = (selected.first, selected.last)
        && first > last
    {
        let text = format!("the range is empty: it begins at {first} and ends at {last}");
        return Err(OperateError::refused(text, "--from-id must not be larger than --to-id"));
    }
    if let (Some(since), Some(until)) = (selected.since, selected.until)
        && since > until
    {
        let (since, until) = (seconds::text(since), seconds::text(until));
        let text = format!("the range is empty: it begins at {since} and ends at {until}");
        return Err(OperateError::refused(text, "--since must not be later than --until"));
    }
    let Some(expired) = extent.expired_through else { return Ok(()) };
    let removed = seconds::text(expired);
    let Some((oldest, oldest_at)) = extent.oldest else {
        let begins = selected.first.is_some() || selected.since.is_some_and(|since| since <= expired);
        let text = format!("the log is empty: retention has deleted all messages created until {removed}");
        return if begins { Err(OperateError::refused(text, RETENTION_HELP)) } else { Ok(()) };
    };
    let is_removed = selected.first.is_some_and(|first| first < oldest)
        || selected.since.is_some_and(|since| since <= expired && since < oldest_at);
    if !is_removed {
        return Ok(());
    }
    let kept = seconds::text(oldest_at);
    let text = format!(
        "retention has deleted messages created until {removed}: the log begins at {oldest}, enqueued at {kept}"
    );
    let help = format!(
        "use --from-id {oldest}, or omit the beginning of the range to send all messages that are left"
    );
    Err(OperateError::refused(text, help))
}

const RETENTION_HELP: &str = "`relay retention` shows what is kept, and why";

/// Returns the entry of a named message.
async fn named(place: &OutboxPlace, extent: &Extent, id: &MessageRef) -> Result<EntryName, OperateError> {
    let which = match (id.place(), id.uuid()) {
        (Some(number), _) => EntryRef::Id(EntryId(number)),
        (None, Some(uuid)) => EntryRef::MessageId(uuid),
        (None, None) => {
            let help = "give a position in the log (a number) or a message id (a UUID)";
            return Err(OperateError::refused(format_args!("{id} is not a message id"), help));
        }
    };
    let found = place.entries.find(&place.pipeline, which).await?;
    match &found[..] {
        [entry] if entry.is_in_log => {
            let Ok(message_id) = Uuid::parse_str(&entry.message_id) else {
                let text = format!("{id} is not a message: its message id is {:?}", entry.message_id);
                return Err(OperateError::refused(text, "only messages can be replayed"));
            };
            Ok(EntryName { id: entry.id, message_id })
        }
        [FoundEntry { parked: Some(parked), .. }] => {
            let state = parked.state.as_str();
            let text =
                format!("{id} is {state}, and its row is no longer in the log: only a parked copy exists");
            let help = "only published messages can be replayed; `relay show` shows its history";
            Err(OperateError::new(OperateErrorKind::Conflict, text).with_help(help))
        }
        [] | [_] => {
            let removed = extent.expired_through.map(seconds::text);
            let text = match removed {
                Some(removed) => {
                    format!(
                        "{id} is not in the log: it never was, or retention has deleted it (messages created until {removed} may be deleted)"
                    )
                }
                None => {
                    format!("{id} is not in the log, and retention has deleted nothing: it was never there")
                }
            };
            Err(OperateError::refused(text, RETENTION_HELP))
        }
        [..] => {
            let ids: Vec<String> = found.iter().map(|entry| entry.message_id.clone()).collect();
            let text = format!("{id} matches {} messages: {}", found.len(), ids.join(", "));
            Err(OperateError::refused(text, "give the message id"))
        }
    }
}

/// Returns an error for an entry that an operator has paused.
pub(super) fn check_pauses(entry: &SelectedEntry, pauses: &[Pause]) -> Result<(), OperateError> {
    let is_paused = |pause: &&Pause| match &pause.scope {
        PauseScope::Pipeline => true,
        PauseScope::Topic(topic) => *topic == entry.topic,
        PauseScope::Key(key) => entry.key.as_ref() == Some(key),
    };
    let Some(pause) = pauses.iter().find(is_paused) else { return Ok(()) };
    let since = seconds::text(pause.since);
    let text = format!("{} is paused by {} since {since}: {:?}", pause.scope, pause.actor, pause.reason);
    let error = OperateError::new(OperateErrorKind::Conflict, text);
    Err(error.with_help("run `relay resume` first, or choose other messages"))
}

/// The word for entries that the pipeline's filter leaves to others.
const LEFT_OUT: &str = "left out";

/// Returns the word under which an entry that is not sent is counted.
fn reason(standing: Standing) -> &'static str {
    match standing {
        Standing::Published => "published",
        Standing::Waiting => "not published yet",
        Standing::Parked(state) => state.as_str(),
        Standing::Discarded => "discarded",
        Standing::Edited => "edited",
    }
}

/// Returns why an entry cannot be replayed.
fn meaning(standing: Standing) -> String {
    match standing {
        Standing::Waiting => {
            String::from("the relay has not published it yet, but will publish it automatically")
        }
        Standing::Discarded => format!("discarded: {DISCARDED}"),
        Standing::Edited => String::from(
            "an operator edited it: the published content is not stored, and its row has different content",
        ),
        other => format!("{}: it is not published yet", reason(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the plan does not claim that a discarded message never arrived, because a confirmation
    /// that comes after the decision is not stored. Oracle: the text.
    #[test]
    fn a_discarded_message_may_have_arrived() {
        let text = meaning(Standing::Discarded);
        assert!(text.contains("may have arrived"), "{text}");
    }
}
