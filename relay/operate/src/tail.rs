//! Messages that are being published now, as the relay passes them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use outbox_log::entries::{EntryName, Extent, SelectedEntry, Selection, Standing};
use outbox_log::{EntryId, LogError};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::OperateError;
use super::message_state::MessageState;
use super::operator::{Operator, Role, Signed};
use super::payload::{SHOWN, SHOWN_BYTES_MAX};
use super::places::{OutboxPlace, Places};
use super::seconds;

/// Maximum number of parked messages that are checked again; of more, the first ones.
const PARKED_MAX: usize = 1_000;
/// Maximum bytes of payloads and headers in a batch with payloads, unless one entry has more.
const BATCH_BYTES: u64 = 8 << 20;

/// The messages to return.
#[derive(Debug, Clone, Default)]
pub struct TailFilter {
    /// Only messages of this topic.
    pub topic: Option<String>,
    /// Only messages with this ordering key.
    pub key: Option<String>,
}

/// A message that the relay has passed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TailLine {
    /// The time when it was enqueued.
    #[serde(serialize_with = "seconds::serialize")]
    pub enqueued_at: OffsetDateTime,
    /// Its position in the log.
    pub id: i64,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Published, or the state in which it is parked.
    pub state: MessageState,
    /// The size of its payload.
    pub payload_bytes: u64,
    /// Its payload as text, if requested, not too large, and not edited before it was published:
    /// the log has what it was before. Bytes that are not UTF-8 are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// Messages that the relay has passed, and whether others wait to be returned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TailBatch {
    /// The messages, in the order of the log; behind them, in the last batch up to the relay's
    /// position, formerly parked ones.
    pub lines: Vec<TailLine>,
    /// Whether others that the relay has passed are not returned yet: call again without a pause.
    pub more: bool,
}

/// Follows one outbox from the current position of its relay.
pub struct Tail<'a> {
    place: &'a OutboxPlace,
    filter: TailFilter,
    with_payloads: bool,
    /// Everything up to here was returned.
    extent: Extent,
    /// The part of the log that is being returned, if it was begun.
    part: Option<Part>,
    /// Messages that were returned as parked. They are returned again after they were published.
    parked: BTreeMap<EntryName, TailLine>,
}

/// The part of the log that the relay has passed between two positions.
struct Part {
    /// The later position.
    to: Extent,
    /// Entries up to this one were read.
    after: EntryId,
    /// Whether no further entries have to be read.
    is_read: bool,
    /// Entries that were read and not returned yet.
    rest: VecDeque<SelectedEntry>,
}

impl<'a> Tail<'a> {
    /// Begins at the current position of the relay. With payloads it needs a signature, which the
    /// audit keeps.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not view messages, or when the outbox does not
    /// answer.
    pub async fn begin(
        places: &'a Places,
        operator: &Operator,
        filter: TailFilter,
        payloads: Option<&Signed>,
    ) -> Result<Self, OperateError> {
        operator.permit(Role::Viewer, "view messages")?;
        let place = places.only_outbox()?;
        let about = |error: LogError| OperateError::from(error).about(&place.pipeline);
        if let Some(signed) = payloads {
            signed.check("view payloads")?;
            let told = [("topic", &filter.topic), ("key", &filter.key)];
            let told: Vec<String> =
                told.into_iter().filter_map(|(name, of)| Some(format!("{name}={}", of.as_ref()?))).collect();
            let selection = if told.is_empty() { String::from("all") } else { told.join(" ") };
            let by = signed.signature(Some(format!("{selection}, payloads")));
            place.entries.note_operation(&place.pipeline, "tail", &by).await.map_err(about)?;
        }
        let extent = place.entries.extent(&place.pipeline).await.map_err(about)?;
        Ok(Self {
            place,
            filter,
            with_payloads: payloads.is_some(),
            extent,
            part: None,
            parked: BTreeMap::new(),
        })
    }

    /// Returns messages that the relay has passed since the last call, in the order of the log: at
    /// most a page of the log, and of payloads a few MiB. Behind the last ones come formerly parked
    /// messages that were published or discarded since. Cancel-safe: nothing is missed.
    ///
    /// # Errors
    /// [`OperateError`] when the outbox does not answer: call again, and nothing is missed.
    pub async fn next(&mut self) -> Result<TailBatch, OperateError> {
        let about = |error: LogError| OperateError::from(error).about(&self.place.pipeline);
        let part = match self.part.take() {
            Some(part) => part,
            None => Part::to(self.place.entries.extent(&self.place.pipeline).await.map_err(about)?),
        };
        let part = self.part.insert(part);
        if part.rest.is_empty() && !part.is_read {
            let found = self
                .place
                .entries
                .passed_between(&self.place.pipeline, &self.extent, &part.to, part.after)
                .await;
            let page = found.map_err(about)?;
            let takes = |entry: &SelectedEntry| takes(self.place, &self.filter, entry);
            part.rest = page.entries.into_iter().filter(takes).collect();
            (part.after, part.is_read) = (page.seen_to, page.exhausted);
        }
        let rest = part.rest.make_contiguous();
        let len = if self.with_payloads { batch_len(rest).min(rest.len()) } else { rest.len() };
        let batch = &rest[..len];
        let mut payloads = if self.with_payloads {
            read_payloads(self.place, batch).await.map_err(about)?
        } else {
            HashMap::new()
        };
        let more = len < rest.len() || !part.is_read;
        let left =
            if more { Vec::new() } else { left(self.place, &part.to, &self.parked).await.map_err(about)? };

        // Nothing is awaited after this point, so no entry is returned twice.
        let entries = part.rest.drain(..len);
        let mut lines: Vec<TailLine> = entries
            .map(|entry| {
                let payload = payloads.remove(&entry.name());
                line(entry, payload)
            })
            .collect();
        for line in lines.iter().filter(|line| line.is_parked()).take(PARKED_MAX - self.parked.len()) {
            let Some(name) = line.name() else { continue };
            self.parked.insert(name, TailLine { payload: None, ..line.clone() });
        }
        for name in left.iter().filter_map(TailLine::name) {
            self.parked.remove(&name);
        }
        lines.extend(left);
        if !more && let Some(part) = self.part.take() {
            self.extent = part.to;
        }
        Ok(TailBatch { lines, more })
    }
}

impl Part {
    fn to(extent: Extent) -> Self {
        Self { to: extent, after: EntryId::default(), is_read: false, rest: VecDeque::new() }
    }
}

/// Returns the parked messages that were published or discarded.
async fn left(
    place: &OutboxPlace,
    now: &Extent,
    parked: &BTreeMap<EntryName, TailLine>,
) -> Result<Vec<TailLine>, LogError> {
    let (mut left, mut after) = (Vec::new(), EntryId::default());
    if parked.is_empty() {
        return Ok(left);
    }
    let selection = Selection { named: parked.keys().copied().collect(), ..Selection::default() };
    loop {
        let page = place.entries.select(&place.pipeline, now, &selection, after).await?;
        for entry in page.entries {
            let Some(before) = parked.get(&entry.name()) else { continue };
            let state = line(entry, None).state;
            if matches!(state, MessageState::Published | MessageState::Discarded) {
                left.push(TailLine { state, ..before.clone() });
            }
        }
        after = page.seen_to;
        if page.exhausted {
            return Ok(left);
        }
    }
}

impl TailLine {
    fn is_parked(&self) -> bool {
        !matches!(self.state, MessageState::Published | MessageState::Discarded | MessageState::Waiting)
    }

    /// Returns the entry that it describes.
    fn name(&self) -> Option<EntryName> {
        let message_id = Uuid::parse_str(&self.message_id).ok()?;
        Some(EntryName { id: EntryId(self.id), message_id })
    }
}

/// Returns the payloads of entries as text. Payloads that are too large to be shown are not read,
/// and neither are those of edited entries, which were published with others.
async fn read_payloads(
    place: &OutboxPlace,
    entries: &[SelectedEntry],
) -> Result<HashMap<EntryName, String>, LogError> {
    let mut payloads = HashMap::new();
    let is_as_published = |entry: &&SelectedEntry| entry.standing != Standing::Edited;
    let ids: Vec<_> =
        entries.iter().filter(is_as_published).map(|entry| (entry.id, entry.message_id)).collect();
    if ids.is_empty() {
        return Ok(payloads);
    }
    for content in place.entries.contents(&ids, SHOWN).await? {
        if let Ok(message) = content.message {
            let name = EntryName { id: content.id, message_id: message.id.as_uuid() };
            payloads.insert(name, String::from_utf8_lossy(&message.payload).into_owned());
        }
    }
    Ok(payloads)
}

/// Returns whether the pipeline has published an entry that is wanted: the relay also passes
/// messages that it leaves to others.
fn takes(place: &OutboxPlace, filter: &TailFilter, entry: &SelectedEntry) -> bool {
    let is_own =
        matches!(entry.standing, Standing::Parked(_)) || !place.leaves_out(&entry.topic, &entry.labels);
    is_own && filter.takes(entry)
}

impl TailFilter {
    fn takes(&self, entry: &SelectedEntry) -> bool {
        self.topic.as_ref().is_none_or(|topic| *topic == entry.topic)
            && self.key.as_ref().is_none_or(|key| entry.key.as_ref() == Some(key))
    }
}

/// Returns the number of next entries to return with their payloads.
fn batch_len(entries: &[SelectedEntry]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&SelectedEntry| {
        bytes += entry.payload_bytes.min(SHOWN_BYTES_MAX) + entry.labels.bytes();
        bytes <= BATCH_BYTES
    };
    entries.iter().take_while(fits).count().max(1)
}

fn line(entry: SelectedEntry, payload: Option<String>) -> TailLine {
    let state = match entry.standing {
        Standing::Parked(state) => state.into(),
        Standing::Discarded => MessageState::Discarded,
        // An edited message was published with other content.
        Standing::Published | Standing::Edited => MessageState::Published,
        Standing::Waiting => MessageState::Waiting,
    };
    TailLine {
        enqueued_at: entry.enqueued_at,
        id: entry.id.0,
        message_id: entry.message_id.to_string(),
        topic: entry.topic,
        key: entry.key,
        state,
        payload_bytes: entry.payload_bytes,
        payload,
    }
}
