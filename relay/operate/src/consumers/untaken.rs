//! A consumer that takes nothing although messages were published for it.

use std::time::Duration;

use outbox_log::entries::{Extent, Search, SelectedEntry, Standing};
use outbox_log::{EntryId, LogError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::searches::{Known, Searches, Untaken};
use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace};

/// The time that a published message may need until its consumer knows it. Only consumers that have
/// applied nothing for as long are examined.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Maximum number of rows of a log that are searched for a consumer's newest message.
const LOOKED_AT_MAX: u64 = 20_000;

/// Maximum number of messages that one call returns: the newest may be parked, or left to others.
const PER_CALL: u32 = 50;

/// Returns the newest message that was published for the consumer of an inbox and that it does not
/// know, if it has applied nothing for some time. Uses what earlier `searches` have shown. An
/// outbox that does not answer is left out: it is reported with its pipeline.
pub(super) async fn find(
    inbox: &InboxPlace,
    last_applied_at: Option<OffsetDateTime>,
    outboxes: &[OutboxPlace],
    searches: &Searches,
) -> Result<Option<Untaken>, OperateError> {
    let outboxes: Vec<_> = outboxes.iter().filter(|place| inbox.is_of(place.pipeline.as_str())).collect();
    if inbox.consumer.is_none() || !inbox.database.has_memory() || outboxes.is_empty() {
        return Ok(None);
    }
    let known = searches.of(inbox, &outboxes);
    let mut known = known.lock().await;
    if let Some(known) = known.as_ref().filter(|known| known.holds(last_applied_at)) {
        let Some(untaken) = known.untaken() else { return Ok(None) };
        let has_arrived = is_known(inbox, untaken.message_id).await?;
        return Ok((!has_arrived).then_some(untaken));
    }
    let now = inbox.database.now().await?;
    let quiet = last_applied_at.map(|at| since(now, at));
    if let Some(time) = quiet.and_then(|quiet| TAKEN_WITHIN.checked_sub(quiet)).filter(|time| !time.is_zero())
    {
        *known = Some(Known::works(last_applied_at, time));
        return Ok(None);
    }
    let Searched { untaken, is_complete } = search(inbox, &outboxes, now, quiet).await?;
    *known = is_complete.then(|| Known::searched(last_applied_at, untaken.clone()));
    Ok(untaken)
}

/// The result of a search of all outboxes.
struct Searched {
    untaken: Option<Untaken>,
    /// Whether all of them have answered.
    is_complete: bool,
}

async fn search(
    inbox: &InboxPlace,
    outboxes: &[&OutboxPlace],
    now: OffsetDateTime,
    quiet: Option<Duration>,
) -> Result<Searched, OperateError> {
    let remembers_from = inbox.database.remembers_from();
    let mut is_complete = true;
    for outbox in outboxes {
        let newest = newest(outbox, inbox).await;
        is_complete &= newest.is_ok();
        for entry in newest.unwrap_or_default() {
            if entry.enqueued_at < remembers_from || is_known(inbox, entry.message_id).await? {
                continue;
            }
            let untaken = Untaken {
                pipeline: outbox.pipeline.to_string(),
                topic: entry.topic,
                message_id: entry.message_id,
                quiet: quiet.unwrap_or_else(|| since(now, entry.enqueued_at)),
                age: Duration::ZERO,
            };
            return Ok(Searched { untaken: Some(untaken), is_complete });
        }
    }
    Ok(Searched { untaken: None, is_complete })
}

/// Returns the time between two times of databases, whose clocks may differ.
fn since(now: OffsetDateTime, at: OffsetDateTime) -> Duration {
    (now - at).max(time::Duration::ZERO).unsigned_abs()
}

async fn is_known(inbox: &InboxPlace, message: Uuid) -> Result<bool, OperateError> {
    let known = inbox.database.known(message).await?;
    Ok(known.iter().any(|known| inbox.holds(&known.consumer, &known.tenant)))
}

/// Returns the newest message of each topic of an inbox that a pipeline has published, among those
/// that are old enough to be known.
async fn newest(outbox: &OutboxPlace, inbox: &InboxPlace) -> Result<Vec<SelectedEntry>, LogError> {
    let extent = outbox.entries.extent(&outbox.pipeline).await?;
    let Some(newest) = extent.newest.filter(|_| extent.is_of_this_server) else { return Ok(Vec::new()) };
    let young = outbox.entries.firsts(&[extent.now - TAKEN_WITHIN]).await?.into_iter().flatten().next();
    let below = young.unwrap_or(EntryId(newest.0.saturating_add(1)));
    let topics = inbox.topics.iter().map(|topic| Some(topic.clone()));
    let topics = if inbox.topics.is_empty() { vec![None] } else { topics.collect() };
    let mut found = Vec::new();
    for topic in topics {
        let search = Search { topic, ..Search::default() };
        found.extend(newest_of(outbox, &extent, &search, below).await?);
    }
    Ok(found)
}

async fn newest_of(
    outbox: &OutboxPlace,
    extent: &Extent,
    search: &Search,
    below: EntryId,
) -> Result<Option<SelectedEntry>, LogError> {
    let mut below = Some(below);
    let mut looked_at = 0;
    while let Some(from) = below.filter(|_| looked_at < LOOKED_AT_MAX) {
        let part = outbox.entries.search(&outbox.pipeline, extent, search, from, PER_CALL).await?;
        let mut published = part.entries.into_iter().filter(|entry| is_published(outbox, entry));
        if let Some(entry) = published.next() {
            return Ok(Some(entry));
        }
        looked_at += part.looked_at;
        below = part.below;
    }
    Ok(None)
}

fn is_published(outbox: &OutboxPlace, entry: &SelectedEntry) -> bool {
    matches!(entry.standing, Standing::Published | Standing::Edited)
        && !entry.message_id.is_nil()
        && !outbox.leaves_out(&entry.topic, &entry.labels)
}
