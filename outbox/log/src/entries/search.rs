//! A search through the log, from its newest entry to its oldest.

use time::OffsetDateTime;

use super::selection::{ENTRIES_PER_CALL, IDS_PER_CALL, SelectedEntry};
use crate::EntryId;

/// Maximum number of entries whose headers one call compares: each has to be read from its row.
const HEADERS_PER_CALL: i64 = 2_000;
/// Maximum stored size of headers that are compared, in bytes. The statements repeat this number.
pub const HEADERS_SEARCHED_BYTES_MAX: usize = 256 << 10;

/// A header with its value. Both are compared exactly, byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderIs {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Conditions of a search: it finds entries that meet every condition. Without a condition, all
/// entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Only of this topic.
    pub topic: Option<String>,
    /// Only with this ordering key.
    pub key: Option<String>,
    /// Only with this header. Headers of more than [`HEADERS_SEARCHED_BYTES_MAX`] match nothing.
    pub header: Option<HeaderIs>,
}

/// The part of the log that one call searched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// The entries that match, newest first.
    pub entries: Vec<SelectedEntry>,
    /// Number of examined entries.
    pub looked_at: u64,
    /// When the oldest of these was enqueued; `None` if there was none.
    pub back_to: Option<OffsetDateTime>,
    /// Continue with entries below this id; `None` when no entry is left.
    pub below: Option<EntryId>,
}

impl Search {
    /// Returns whether every entry matches.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the maximum number of entries that one call looks at.
    pub(crate) fn rows_max(&self, wanted: usize) -> i64 {
        match (&self.header, self.takes_all()) {
            (Some(_), _) => HEADERS_PER_CALL,
            (None, true) => i64::try_from(wanted).unwrap_or(ENTRIES_PER_CALL),
            (None, false) => IDS_PER_CALL,
        }
    }
}

/// Returns the number of entries that a call returns, from the wanted number.
pub(crate) fn returned_max(wanted: u32) -> usize {
    usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, ENTRIES_PER_CALL as usize - SHARED)
}

/// Number of rows that can share an id, after a sequence was set back: one in each segment. A call
/// reads this many more than it returns, and so never ends between them.
pub(crate) const SHARED: usize = 8;

/// Entries that one call looks at: the newest ones below an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of rows.
    pub(crate) rows: i64,
    /// The smallest id.
    pub(crate) first: EntryId,
    /// When its row was enqueued.
    pub(crate) back_to: OffsetDateTime,
}

/// Cuts off the entries beyond the wanted number, but not between two with one id. Returns the id
/// below which the next call continues if this one ended early: because of that, or because the
/// headers are too large (`is_cut`, behind all rows of the last id).
pub(crate) fn ends_early(entries: &mut Vec<SelectedEntry>, wanted: usize, is_cut: bool) -> Option<EntryId> {
    if entries.len() <= wanted {
        return entries.last().filter(|_| is_cut).map(|last| last.id);
    }
    let last = entries.get(wanted.saturating_sub(1))?.id;
    let shared = entries.iter().skip(wanted).take_while(|entry| entry.id == last).count();
    entries.truncate(wanted + shared);
    Some(last)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::entries::{Labels, Standing};

    fn entries(ids: &[i64]) -> Vec<SelectedEntry> {
        let entry = |id: &i64| SelectedEntry {
            id: EntryId(*id),
            message_id: Uuid::nil(),
            topic: String::from("orders"),
            key: None,
            labels: Labels::default(),
            payload_bytes: 0,
            enqueued_at: OffsetDateTime::UNIX_EPOCH,
            standing: Standing::Published,
        };
        ids.iter().map(entry).collect()
    }

    #[test]
    fn a_call_never_ends_between_two_rows_of_one_id() {
        let mut full = entries(&[9, 8, 7, 7, 6]);
        assert_eq!(ends_early(&mut full, 3, false), Some(EntryId(7)));
        assert_eq!(full, entries(&[9, 8, 7, 7]), "one more than wanted");
        assert_eq!(ends_early(&mut entries(&[9, 8]), 1, false), Some(EntryId(9)));
        let mut cut = entries(&[9, 9]);
        assert_eq!(ends_early(&mut cut, 4, true), Some(EntryId(9)));
        assert_eq!(cut.len(), 2);
        assert_eq!(ends_early(&mut entries(&[9, 8]), 4, false), None);
        assert_eq!(ends_early(&mut Vec::new(), 4, true), None);
    }

    #[test]
    fn headers_are_compared_in_shorter_steps() {
        let search = Search::default();
        assert_eq!(search.rows_max(50), 50, "every row is shown");
        let of_topic = Search { topic: Some("orders".into()), ..Search::default() };
        assert_eq!(of_topic.rows_max(50), IDS_PER_CALL);
        let header = Some(HeaderIs { name: "order".into(), value: "7".into() });
        assert_eq!(Search { header, ..of_topic }.rows_max(50), HEADERS_PER_CALL);
        assert_eq!([0, 50, u32::MAX].map(returned_max), [1, 50, 992]);
    }
}
