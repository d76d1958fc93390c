//! A search for messages in the outboxes, newest first: by topic, ordering key or a header, or
//! without a condition. Published messages are found as well as those that wait, until retention
//! removes them from the log.
//!
//! The log has no index of topics, keys or headers, because every enqueue would pay for it. A
//! search goes back through the log in bounded steps, and reports how far it came.

use std::collections::BTreeMap;
use std::time::Duration;

use message::{HEADER_VALUE_BYTES_MAX, HeaderName};
pub use outbox_log::entries::HeaderIs;
use outbox_log::entries::{Extent, Search as LogSearch, SelectedEntry, Standing};
use outbox_log::{EntryId, LogError};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::OperateError;
use crate::message_state::MessageState;
use crate::operator::{Operator, Role};
use crate::places::{OutboxPlace, Places};
use crate::replay::Moment;
use crate::seconds;
use crate::turns::in_turns;

/// Maximum number of messages that one search examines in each outbox; the last step may exceed it.
pub const LOOKED_AT_MAX: u64 = 100_000;
/// The same for a search by a header, which has to be read from each row.
pub const HEADERS_LOOKED_AT_MAX: u64 = 20_000;
/// The time after which a search of an outbox takes no further step.
const LASTS_MAX: Duration = Duration::from_secs(3);
/// Maximum size of a topic, a key or the name of a header, in bytes: no message has a longer one.
const TEXT_BYTES_MAX: usize = 255;

/// Conditions of a search: it finds messages that meet every condition. Without a condition, all
/// messages.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Only of this topic.
    pub topic: Option<String>,
    /// Only with this ordering key.
    pub key: Option<String>,
    /// Only with this header: its name and its value, which are compared exactly.
    pub header: Option<HeaderIs>,
    /// Only messages created before this time, by the time in their ids.
    pub until: Option<Moment>,
    /// Only below this position in the log, to continue a search. Needs a single outbox.
    pub below: Option<i64>,
    /// Maximum number of messages from each outbox, unless several share the last position.
    pub limit: u32,
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoundMessage {
    /// The pipeline.
    pub pipeline: String,
    /// Its position in the log.
    pub id: i64,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its event type.
    pub kind: String,
    /// Its state.
    pub state: MessageState,
    /// The size of its payload.
    pub payload_bytes: u64,
    /// The time when it was enqueued.
    #[serde(serialize_with = "seconds::serialize")]
    pub enqueued_at: OffsetDateTime,
}

/// The part of an outbox that was searched.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchedPart {
    /// The pipeline.
    pub pipeline: String,
    /// Number of examined messages.
    pub searched: u64,
    /// The number of positions from the beginning of this search to the oldest message: about as
    /// many messages, because a rolled back transaction leaves a gap.
    pub of_about: u64,
    /// When the oldest of the searched messages was enqueued.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub back_to: Option<OffsetDateTime>,
    /// The position below which to continue the search; `None` if it came to the oldest message.
    pub below: Option<i64>,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SearchResult {
    /// The messages, newest first.
    pub messages: Vec<FoundMessage>,
    /// The part of each outbox that was searched.
    pub searched: Vec<SearchedPart>,
    /// The errors of outboxes that do not answer; their messages are missing.
    #[serde(serialize_with = "texts")]
    pub away: Vec<OperateError>,
}

fn texts<S: Serializer>(errors: &[OperateError], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(errors.iter().map(ToString::to_string))
}

impl SearchedPart {
    /// Returns how far the search came, for people.
    #[must_use]
    pub fn told(&self) -> String {
        let Self { pipeline, searched, of_about, back_to, below } = self;
        match (below, back_to) {
            (_, None) => format!("{pipeline}: the log has no message there"),
            (None, Some(at)) => {
                format!(
                    "{pipeline}: searched {searched} messages, back to the oldest one, of {}",
                    seconds::text(*at)
                )
            }
            (Some(_), Some(at)) => {
                let at = seconds::text(*at);
                format!("{pipeline}: searched {searched} of about {of_about} messages, back to {at}")
            }
        }
    }
}

impl SearchResult {
    /// Returns the text for a search without matches, for people. A database that was not searched
    /// is not reported as empty.
    #[must_use]
    pub fn none_text(&self) -> &'static str {
        if !self.away.is_empty() {
            "nothing was found, but not every database answered"
        } else if self.searched.iter().any(|part| part.below.is_some()) {
            "nothing found so far: continue the search for older messages"
        } else {
            "no messages found"
        }
    }
}

impl Search {
    /// Returns whether it has no condition: it lists the latest messages.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.in_log().takes_all()
    }

    fn in_log(&self) -> LogSearch {
        LogSearch { topic: self.topic.clone(), key: self.key.clone(), header: self.header.clone() }
    }

    fn check(&self) -> Result<(), OperateError> {
        let name = self.header.as_ref().map(|header| header.name.as_str());
        let texts = [("topic", self.topic.as_deref()), ("key", self.key.as_deref()), ("header name", name)];
        for (what, text) in texts.into_iter().filter_map(|(what, text)| Some((what, text?))) {
            if text.is_empty() || text.len() > TEXT_BYTES_MAX {
                let found =
                    format!("the {what} has {} bytes; it must have 1 to {TEXT_BYTES_MAX}", text.len());
                return Err(OperateError::refused(found, "give the whole text: it is compared exactly"));
            }
        }
        let Some(HeaderIs { name, value }) = &self.header else { return Ok(()) };
        if HeaderName::is_reserved(name) {
            let text = format!("{name} is not a free header: it belongs to the envelope");
            return Err(OperateError::refused(text, "search by topic, key, message id or another header"));
        }
        if value.len() > HEADER_VALUE_BYTES_MAX {
            let text = format!(
                "the header value has {} bytes; the maximum is {HEADER_VALUE_BYTES_MAX}",
                value.len()
            );
            return Err(OperateError::refused(text, "give the whole value: it is compared exactly"));
        }
        Ok(())
    }
}

/// Searches the outboxes, each from its newest message back: until it has the wanted number, or has
/// looked at [`LOOKED_AT_MAX`] messages, or for three seconds. Unreachable databases do not hide
/// the others. Where pipelines share an outbox, a message is listed once. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view messages, when a condition cannot match any
/// message, or when a position is given for several outboxes.
pub async fn search(
    places: &Places,
    operator: &Operator,
    search: &Search,
) -> Result<SearchResult, OperateError> {
    operator.permit(Role::Viewer, "view messages")?;
    search.check()?;
    if search.below.is_some() && places.count() != 1 {
        let text = "a position in the log belongs to one pipeline";
        return Err(OperateError::refused(text, "name the pipeline beside the position"));
    }
    let looks = places.outboxes.iter().map(|place| of_place(place, search)).collect();
    let mut result = SearchResult { away: places.away.clone(), ..SearchResult::default() };
    for (place, found) in places.outboxes.iter().zip(in_turns(looks).await) {
        match found {
            Ok(found) => {
                result.messages.extend(found.messages);
                result.searched.push(found.part);
            }
            Err(error) => result.away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    if places.outboxes.len() > 1 {
        result.messages = merged(result.messages);
    }
    Ok(result)
}

struct OfPlace {
    messages: Vec<FoundMessage>,
    part: SearchedPart,
}

async fn of_place(place: &OutboxPlace, search: &Search) -> Result<OfPlace, LogError> {
    let extent = place.entries.extent(&place.pipeline).await?;
    let in_log = search.in_log();
    let looked_at_max = if in_log.header.is_some() { HEADERS_LOOKED_AT_MAX } else { LOOKED_AT_MAX };
    let begun = Instant::now();
    let newest = extent.newest.map_or(0, |newest| newest.0);
    let mut from = search.below.unwrap_or(i64::MAX).min(newest.saturating_add(1));
    if let Some(until) = search.until {
        let first = place.entries.firsts(&[until.at(extent.now)]).await?.into_iter().flatten().next();
        from = first.map_or(from, |first| from.min(first.0));
    }
    let oldest = extent.oldest.map_or(from, |(oldest, _)| oldest.0);
    let mut part = SearchedPart {
        pipeline: place.pipeline.to_string(),
        searched: 0,
        of_about: u64::try_from(from.saturating_sub(oldest)).unwrap_or_default(),
        back_to: None,
        below: Some(from),
    };
    let mut messages = Vec::new();
    while let Some(below) = part.below {
        let wanted = search.limit.saturating_sub(u32::try_from(messages.len()).unwrap_or(u32::MAX));
        let is_over = part.searched >= looked_at_max || (part.searched > 0 && begun.elapsed() >= LASTS_MAX);
        if wanted == 0 || is_over {
            break;
        }
        let step = place.entries.search(&place.pipeline, &extent, &in_log, EntryId(below), wanted).await?;
        messages.extend(step.entries.into_iter().map(|entry| found(place, &extent, entry)));
        part.searched += step.looked_at;
        part.back_to = step.back_to.or(part.back_to);
        part.below = step.below.map(|below| below.0).filter(|below| *below > oldest);
    }
    part.of_about = part.of_about.max(part.searched);
    Ok(OfPlace { messages, part })
}

fn found(place: &OutboxPlace, extent: &Extent, entry: SelectedEntry) -> FoundMessage {
    let state = match entry.standing {
        Standing::Parked(state) => state.into(),
        Standing::Discarded => MessageState::Discarded,
        _ if !extent.is_of_this_server => MessageState::Unknown,
        _ if place.leaves_out(&entry.topic, &entry.labels) => MessageState::LeftOut,
        Standing::Waiting => MessageState::Waiting,
        Standing::Published | Standing::Edited => MessageState::Published,
    };
    FoundMessage {
        pipeline: place.pipeline.to_string(),
        id: entry.id.0,
        message_id: entry.message_id.to_string(),
        topic: entry.topic,
        key: entry.key,
        kind: entry.labels.kind,
        state,
        payload_bytes: entry.payload_bytes,
        enqueued_at: entry.enqueued_at,
    }
}

/// Merges the messages of several pipelines into one order. A message of an outbox that several
/// pipelines read is kept once: at the first pipeline that does not leave it to others. Rows
/// without a valid id are all kept: two outboxes may have them at the same position.
fn merged(messages: Vec<FoundMessage>) -> Vec<FoundMessage> {
    let mut kept: BTreeMap<(String, i64), FoundMessage> = BTreeMap::new();
    let nil = Uuid::nil().to_string();
    let (unnamed, messages): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.message_id == nil);
    for message in messages {
        let name = (message.message_id.clone(), message.id);
        let is_better = |known: &FoundMessage| {
            known.state == MessageState::LeftOut && message.state != MessageState::LeftOut
        };
        if kept.get(&name).is_none_or(is_better) {
            kept.insert(name, message);
        }
    }
    let mut messages: Vec<FoundMessage> = kept.into_values().chain(unnamed).collect();
    messages.sort_by_key(|message| std::cmp::Reverse((message.enqueued_at, message.id)));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pipeline: &str, id: i64, state: MessageState) -> FoundMessage {
        FoundMessage {
            pipeline: pipeline.to_owned(),
            id,
            message_id: format!("019f0000-0000-7000-8000-{id:012}"),
            topic: String::from("orders"),
            key: None,
            kind: String::from("order.placed"),
            state,
            payload_bytes: 1,
            enqueued_at: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(id.unsigned_abs()),
        }
    }

    #[test]
    fn a_message_that_pipelines_share_is_listed_at_the_one_that_takes_it() {
        let left_out = |pipeline, id| message(pipeline, id, MessageState::LeftOut);
        let published = |pipeline, id| message(pipeline, id, MessageState::Published);
        let all =
            vec![left_out("a", 2), left_out("a", 1), published("b", 2), left_out("b", 1), published("b", 3)];
        assert_eq!(merged(all), [published("b", 3), published("b", 2), left_out("a", 1)]);
    }

    #[test]
    fn rows_without_an_id_are_all_listed() {
        let row = |pipeline| FoundMessage {
            message_id: Uuid::nil().to_string(),
            ..message(pipeline, 1, MessageState::Waiting)
        };
        assert_eq!(merged(vec![row("a"), row("b")]), [row("a"), row("b")]);
    }

    #[test]
    fn what_no_message_can_have_is_refused() {
        let refused = |search: Search| search.check().unwrap_err().to_string();
        let header = |name: &str, value: &str| Search {
            header: Some(HeaderIs { name: name.to_owned(), value: value.to_owned() }),
            ..Search::default()
        };
        let key = Search { key: Some("ä".repeat(200)), ..Search::default() };
        assert_eq!(refused(key), "the key has 400 bytes; it must have 1 to 255");
        assert!(refused(header("ce_type", "x")).contains("ce_type is not a free header"));
        assert!(refused(header("", "x")).contains("header name has 0 bytes"));
        assert!(refused(header("a", &"x".repeat(9_000))).contains("9000 bytes"));
        assert!(header("a", "").check().is_ok(), "a value may be empty");
    }

    #[test]
    fn what_was_not_searched_is_not_called_empty() {
        let part = SearchedPart {
            pipeline: String::from("orders"),
            searched: 100_000,
            of_about: 10_000_000,
            back_to: Some(OffsetDateTime::UNIX_EPOCH),
            below: Some(9_900_001),
        };
        assert_eq!(
            part.told(),
            "orders: searched 100000 of about 10000000 messages, back to 1970-01-01T00:00:00Z"
        );
        let whole = SearchedPart { below: None, ..part.clone() };
        assert!(
            whole.told().ends_with("back to the oldest one, of 1970-01-01T00:00:00Z"),
            "{}",
            whole.told()
        );
        let empty = SearchedPart { back_to: None, ..whole.clone() };
        assert_eq!(empty.told(), "orders: the log has no message there");
        let result = |part, away| SearchResult { searched: vec![part], away, ..SearchResult::default() };
        assert_eq!(
            result(part, vec![]).none_text(),
            "nothing found so far: continue the search for older messages"
        );
        assert_eq!(result(whole.clone(), vec![]).none_text(), "no messages found");
        let away = vec![OperateError::refused("bills: away", "")];
        assert!(result(whole, away).none_text().contains("not every database answered"));
    }
}
