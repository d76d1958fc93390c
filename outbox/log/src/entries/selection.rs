//! Entries chosen from the log.

use message::MessageId;
use time::OffsetDateTime;
use uuid::Uuid;

use super::labels::Labels;
use crate::{BrokerTrouble, EntryId, ExceptionState, LogError, stored};

/// Maximum number of ids that one call looks at.
pub(crate) const IDS_PER_CALL: i64 = 10_000;
/// Maximum number of entries that one call returns.
pub(crate) const ENTRIES_PER_CALL: i64 = 1_000;
/// Maximum headers in one call, in bytes of JSON. A single entry above it is returned alone. The
/// statements repeat this number.
#[cfg(feature = "sqlite")]
pub(crate) const LABEL_BYTES_PER_CALL: usize = 8 << 20;

/// The extent of a log, and a relay's progress in it, at one point in time.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The time, by the database's clock.
    pub now: OffsetDateTime,
    /// The stored cursor; `None` when the relay has never led.
    pub(crate) cursor: Option<String>,
    /// When the cursor was stored.
    pub checkpoint_at: Option<OffsetDateTime>,
    /// Whether the cursor belongs to the history of the answering server. If not, the next leader
    /// compares the two histories first. Until then the cursor is meaningless.
    pub is_of_this_server: bool,
    /// The remaining entry with the smallest id, and when it was enqueued.
    pub oldest: Option<(EntryId, OffsetDateTime)>,
    /// The entry with the largest id.
    pub newest: Option<EntryId>,
    /// Retention has removed messages whose ids were generated up to this time; `None` if it has
    /// removed none.
    pub expired_through: Option<OffsetDateTime>,
    /// The segments that the log lacks, by name; `None` when it is whole.
    pub(crate) missing_segments: Option<String>,
}

impl Extent {
    /// Returns the error that keeps the relay's messages from its broker.
    #[must_use]
    pub fn broker_trouble(&self) -> Option<BrokerTrouble> {
        self.cursor.as_deref().and_then(stored::read_trouble)
    }

    /// Checks that the log has all of its segments. While one is missing, its entries cannot be
    /// found.
    ///
    /// # Errors
    /// [`LogError::Operator`] names the segments that were detached or dropped.
    pub fn check_whole(&self) -> Result<(), LogError> {
        self.missing_segments.as_deref().map_or(Ok(()), |missing| Err(LogError::without_segments(missing)))
    }

    /// Returns whether the relay has ever led.
    #[must_use]
    pub fn has_cursor(&self) -> bool {
        self.cursor.is_some()
    }

    /// Returns whether a later extent has a cursor in the same history of the server: transactions
    /// and ids kept their meaning the whole time. True also if the relay had none before, so that
    /// it had passed nothing.
    #[must_use]
    pub fn lasts_in(&self, later: &Self) -> bool {
        let history = |extent: &Self| {
            let base = stored::read(extent.cursor.as_deref()?).ok()?.base;
            // A position, its snapshot, and its history.
            Some(base.as_str().split('@').nth(2).unwrap_or_default().to_owned())
        };
        let is_same = || history(later).is_some_and(|later| history(self) == Some(later));
        !self.has_cursor() || later.is_of_this_server && is_same()
    }
}

/// Returns the time in a message id.
pub(crate) fn made_at(id: Uuid) -> Option<OffsetDateTime> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    let nanos = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()
}

/// Returns the smallest message id of a time; the smallest of all for times that no id can have.
pub(crate) fn smallest_id(at: OffsetDateTime) -> Uuid {
    MessageId::floor(at).unwrap_or(Uuid::nil())
}

/// One message in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// Its position in the log.
    pub id: EntryId,
    /// Its message id.
    pub message_id: Uuid,
}

/// A choice of entries: those that meet every condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only these entries; empty means all. The message id belongs to it: after a sequence was set
    /// back, rows can share an id.
    pub named: Vec<EntryName>,
    /// Only of this topic.
    pub topic: Option<String>,
    /// Only with this ordering key.
    pub key: Option<String>,
    /// Only ids from this one on.
    pub first: Option<EntryId>,
    /// Only ids up to this one.
    pub last: Option<EntryId>,
    /// Only entries that were enqueued at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Only entries that were enqueued at this time or before.
    pub until: Option<OffsetDateTime>,
}

/// The ids that one call looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    /// The id before the first one.
    pub(crate) above: i64,
    /// The last id.
    pub(crate) to: i64,
    /// Whether no id follows.
    pub(crate) is_last: bool,
}

impl Selection {
    /// Returns the ids for the next call. `None` when none are left.
    pub(crate) fn range(&self, extent: &Extent, after: EntryId) -> Option<IdRange> {
        let smallest = self.named.iter().map(|name| name.id).min();
        let oldest = extent.oldest.map_or(EntryId(1), |(id, _)| id);
        let first = [Some(oldest), self.first, smallest].into_iter().flatten().max()?;
        let largest = self.named.iter().map(|name| name.id).max();
        let last = [extent.newest, self.last, largest].into_iter().flatten().min()?;
        let above = after.0.max(first.0.saturating_sub(1));
        if extent.newest.is_none() || above >= last.0 {
            return None;
        }
        // Named ids are looked up in the index.
        let step = if self.named.is_empty() { IDS_PER_CALL } else { i64::MAX };
        let to = above.saturating_add(step).min(last.0);
        Some(IdRange { above, to, is_last: to == last.0 })
    }
}

/// An entry of a selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedEntry {
    /// Its position in the log.
    pub id: EntryId,
    /// Its message id; nil where the row has no valid one and so is not a message.
    pub message_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its kind and headers.
    pub labels: Labels,
    /// The size of its payload.
    pub payload_bytes: u64,
    /// When it was enqueued.
    pub enqueued_at: OffsetDateTime,
    /// Its progress.
    pub standing: Standing,
}

impl SelectedEntry {
    /// Returns what distinguishes it from every other entry.
    #[must_use]
    pub fn name(&self) -> EntryName {
        EntryName { id: self.id, message_id: self.message_id }
    }
}

/// The progress of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The broker has confirmed it.
    Published,
    /// The relay has not passed it yet.
    Waiting,
    /// It is parked.
    Parked(ExceptionState),
    /// An operator discarded it. An attempt before the decision may have arrived: a confirmation
    /// that comes later is not stored.
    Discarded,
    /// An operator edited it before it was published. The published content is not kept: the row
    /// has the old content.
    Edited,
}

impl Standing {
    pub(crate) fn of(
        is_passed: bool,
        state: Option<ExceptionState>,
        is_discarded: bool,
        is_edited: bool,
    ) -> Self {
        match state {
            Some(state) => Self::Parked(state),
            None if is_discarded => Self::Discarded,
            None if !is_passed => Self::Waiting,
            None if is_edited => Self::Edited,
            None => Self::Published,
        }
    }
}

/// Consecutive selected entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectedPage {
    /// The entries, in the order of ids.
    pub entries: Vec<SelectedEntry>,
    /// Every entry up to this id was examined.
    pub seen_to: EntryId,
    /// Whether no entry follows.
    pub exhausted: bool,
}

impl SelectedPage {
    /// Makes a page from a range. `is_cut` when it ends before the range because the headers are
    /// too large, behind all rows of its last id.
    ///
    /// The next page begins above an id, so no page ends between two rows of one id. Where a full
    /// page may do so, the rows of its last id are left to the next one.
    pub(crate) fn of(mut entries: Vec<SelectedEntry>, range: IdRange, is_cut: bool) -> Self {
        let last = entries.last().map(|last| last.id);
        if entries.len() as i64 >= ENTRIES_PER_CALL {
            entries.retain(|entry| Some(entry.id) != last);
            let seen_to = last.map_or(EntryId(range.to), |last| EntryId(last.0 - 1));
            return Self { entries, seen_to, exhausted: false };
        }
        let seen_to = last.filter(|_| is_cut).unwrap_or(EntryId(range.to));
        Self { entries, seen_to, exhausted: range.is_last && !is_cut }
    }

    /// Makes the page after the last one.
    pub(crate) fn end(after: EntryId) -> Self {
        Self { entries: Vec::new(), seen_to: after, exhausted: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(oldest: i64, newest: i64) -> Extent {
        let now = OffsetDateTime::UNIX_EPOCH;
        Extent {
            now,
            cursor: None,
            checkpoint_at: None,
            is_of_this_server: true,
            oldest: Some((EntryId(oldest), now)),
            newest: Some(EntryId(newest)),
            expired_through: None,
            missing_segments: None,
        }
    }

    #[test]
    fn a_cursor_lasts_until_the_server_has_another_history() {
        let at = |base: &str| Extent {
            cursor: Some(format!(r#"{{"base":"{base}","progress":null}}"#)),
            ..extent(1, 2)
        };
        let first = at("17@700:710:@7/1/A");
        assert!(first.lasts_in(&at("19@720:720:@7/1/A@rebased")));
        assert!(!first.lasts_in(&at("19@720:720:@7/2/B")), "a failover");
        assert!(
            !first.lasts_in(&Extent { is_of_this_server: false, ..first.clone() }),
            "before a leader knows"
        );
        assert!(!first.lasts_in(&extent(1, 2)), "the relay was forgotten");
        assert!(at("17").lasts_in(&at("19")) && extent(1, 2).lasts_in(&first));
    }

    fn range(above: i64, to: i64, is_last: bool) -> IdRange {
        IdRange { above, to, is_last }
    }

    #[test]
    fn a_selection_is_looked_at_in_bounded_steps() {
        let all = Selection::default();
        let extent = extent(5, 25_000);
        assert_eq!(all.range(&extent, EntryId(0)), Some(range(4, 10_004, false)));
        assert_eq!(all.range(&extent, EntryId(10_004)), Some(range(10_004, 20_004, false)));
        assert_eq!(all.range(&extent, EntryId(20_004)), Some(range(20_004, 25_000, true)));
        assert_eq!(all.range(&extent, EntryId(25_000)), None);
        let part = Selection { first: Some(EntryId(7)), last: Some(EntryId(9)), ..Selection::default() };
        assert_eq!(part.range(&extent, EntryId(0)), Some(range(6, 9, true)));
        let named = [24_000, 6].map(|id| EntryName { id: EntryId(id), message_id: Uuid::nil() });
        let named = Selection { named: named.to_vec(), ..Selection::default() };
        assert_eq!(named.range(&extent, EntryId(0)), Some(range(5, 24_000, true)));
        let empty = Extent { oldest: None, newest: None, ..extent };
        assert_eq!(all.range(&empty, EntryId(0)), None);
    }

    #[test]
    fn no_page_ends_between_two_rows_of_one_id() {
        let entry = |id| SelectedEntry {
            id: EntryId(id),
            message_id: Uuid::nil(),
            topic: String::from("orders"),
            key: None,
            labels: Labels::default(),
            payload_bytes: 0,
            enqueued_at: OffsetDateTime::UNIX_EPOCH,
            standing: Standing::Published,
        };
        let entries = || (1..=ENTRIES_PER_CALL - 2).chain([999, 999]).map(entry).collect();
        let page = SelectedPage::of(entries(), range(0, 2_000, true), false);
        assert_eq!((page.entries.len(), page.seen_to, page.exhausted), (998, EntryId(998), false));
        let page = SelectedPage::of(vec![entry(7), entry(7)], range(0, 2_000, true), true);
        assert_eq!((page.entries.len(), page.seen_to, page.exhausted), (2, EntryId(7), false));
        let page = SelectedPage::of(vec![entry(7)], range(0, 2_000, true), false);
        assert_eq!((page.entries.len(), page.seen_to, page.exhausted), (1, EntryId(2_000), true));
    }

    #[test]
    fn only_what_the_broker_has_confirmed_counts_as_published() {
        use ExceptionState::{Dead, Held};
        let standing = Standing::of;
        assert_eq!(standing(true, None, false, false), Standing::Published);
        assert_eq!(standing(false, None, false, false), Standing::Waiting);
        assert_eq!(standing(true, Some(Held), false, false), Standing::Parked(Held));
        assert_eq!(standing(true, Some(Dead), false, true), Standing::Parked(Dead));
        assert_eq!(standing(true, None, true, false), Standing::Discarded);
        assert_eq!(standing(true, None, false, true), Standing::Edited);
    }

    #[test]
    fn the_time_of_a_message_id_is_read() {
        let id = Uuid::from_u128((1_700_000_000_123_u128 << 80) | (7 << 76) | (2 << 62));
        assert_eq!(made_at(id).map(|at| at.unix_timestamp_nanos() / 1_000_000), Some(1_700_000_000_123));
    }
}
