//! Detects entries that share an id.
//!
//! The machine knows every entry by its id: in the cursor, among the entries published ahead of it,
//! and in changes. A log whose sequence was set back can have two entries with one id, and the
//! second would be mistaken for the first. Their message ids distinguish them. Where two meet,
//! nothing more is read or stored, the term ends, and the log gives the later ones new ids.
//!
//! They meet in a page, in the window, or among the changes, where a parked entry is parked again
//! or removed while the other entry is about to be parked. In all other cases the database
//! distinguishes them.

use std::collections::HashMap;

use outbox_log::{Entry, EntryId, Page};

use super::Machine;

impl Machine {
    /// Returns an id that two entries share. The term has to end then.
    #[must_use]
    pub(crate) fn shared_id(&self) -> Option<EntryId> {
        self.read.shared
    }

    /// Returns whether two entries of a page share an id, or whether an entry of the page shares
    /// its id with an entry of the log that is not both settled and passed.
    ///
    /// Ids mostly rise, so only ids that are not above all earlier ones are looked up.
    pub(super) fn has_shared_id(&mut self, page: &Page) -> bool {
        let mut low: HashMap<EntryId, &Entry> = HashMap::new();
        let mut last = None;
        for entry in &page.entries {
            if last.replace(entry.id) == Some(entry.id) {
                self.read.shared = Some(entry.id);
            }
            if entry.id <= self.read.highest {
                low.insert(entry.id, entry);
            }
        }
        self.read.highest = self.read.highest.max(last.unwrap_or_default());
        if !low.is_empty() {
            self.read.shared = self.read.shared.or_else(|| self.window.shared_id(&low));
        }
        self.read.shared.is_some()
    }

    /// Returns whether another message is to be parked under this id, so that a change of this one
    /// would replace it.
    pub(super) fn is_of_another(&mut self, id: EntryId, message_id: &str) -> bool {
        // Where another one is to be removed, the database would find its row.
        let is_other = self.unstored.parked(id).is_some_and(|parked| parked.message_id != message_id);
        if is_other {
            self.read.shared = Some(id);
        }
        is_other
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use message::{MaxInFlightPerKey, Message};
    use outbox_log::{Cursor, Difference, ExceptionChange, ExceptionState, Mark};

    use super::super::bench::{Bench, exception, message_for};
    use super::*;

    /// Reads a page of entries, and returns the id that two entries share.
    fn read(bench: &mut Bench, entries: &[(i64, &Message)]) -> Option<EntryId> {
        read_in(bench, entries, None)
    }

    /// Does the same with entries that are delivered after `deliver_in`.
    fn read_in(
        bench: &mut Bench,
        entries: &[(i64, &Message)],
        deliver_in: Option<Duration>,
    ) -> Option<EntryId> {
        let entry = |(id, message): &(i64, &Message)| Entry {
            id: EntryId(*id),
            message: Ok((*message).clone()),
            deliver_in,
        };
        let difference = Arc::new(Difference { base: Mark::new("0"), head: Mark::new("1"), ceiling: 9 });
        let page = Page { entries: entries.iter().map(entry).collect(), exhausted: true };
        bench.machine.page(&difference, page);
        bench.machine.read.shared.take()
    }

    #[test]
    fn two_entries_of_one_id_are_found_wherever_the_first_one_is() {
        let (one, other) = (message_for("t", "a"), message_for("t", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        let shared = Some(EntryId(5));
        assert_eq!(read(&mut bench, &[(5, &one), (5, &other)]), shared, "in one page");
        assert_eq!(bench.machine.open_len(), 0, "the page is not taken in");

        assert_eq!(
            read(&mut bench, &[(3, &message_for("t", "c")), (5, &one), (7, &message_for("t", "d"))]),
            None
        );
        assert_eq!(read(&mut bench, &[(4, &other), (6, &one)]), None, "late, and by themselves");
        assert_eq!(read(&mut bench, &[(5, &other)]), shared, "queued");
        let submitted = bench.machine.submissions(9);
        assert_eq!(read(&mut bench, &[(5, &other)]), shared, "in flight");
        bench.confirm(submitted[1].ticket);
        assert_eq!(read(&mut bench, &[(5, &other)]), shared, "not passed");
        for submission in [submitted[0].ticket, submitted[2].ticket] {
            bench.confirm(submission);
        }
        for submission in bench.machine.submissions(9) {
            bench.confirm(submission.ticket);
        }
        assert_eq!(read(&mut bench, &[(5, &other)]), None, "passed");
    }

    #[test]
    fn an_entry_beside_one_that_is_left_out_is_found() {
        let (one, other) = (message_for("t", "a"), message_for("foreign", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        let rule = crate::filter::Rule { topics: vec![String::from("t")], ..Default::default() };
        bench.machine.settings.filter = crate::filter::Filter::any_of(vec![rule]).unwrap();
        assert_eq!(read(&mut bench, &[(5, &other), (5, &one)]), Some(EntryId(5)));
    }

    /// An entry that an earlier term parked is read back beside another one with its id.
    #[test]
    fn a_change_does_not_take_the_place_of_another_message() {
        for is_confirmed in [true, false] {
            let (parked, other) = (message_for("t", "a"), message_for("u", "b"));
            let mut bench = Bench::new(MaxInFlightPerKey::One);
            assert_eq!(read(&mut bench, &[(5, &other)]), None);
            bench.machine.due(vec![exception(5, &parked, ExceptionState::Scheduled)], 0.5);
            let submitted = bench.machine.submissions(9);
            assert_eq!(submitted.len(), 2);
            bench.fail(submitted[0].ticket);
            assert_eq!(bench.machine.shared_id(), None);
            if is_confirmed {
                bench.confirm(submitted[1].ticket);
            } else {
                bench.fail(submitted[1].ticket);
            }
            assert_eq!(bench.machine.shared_id(), Some(EntryId(5)));
            assert_eq!(bench.machine.checkpoint(), None, "the cursor must not pass the other one");
            assert_eq!(bench.machine.transaction_checkpoint(true), None);
            assert_eq!(bench.machine.stored, Cursor::at(Mark::new("0")));
        }
    }

    /// An unanswered entry is postponed, and its receipt brings it forward.
    #[test]
    fn what_is_brought_forward_does_not_take_the_place_of_another_message() {
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        let (silent, alive) = (message_for("t", "a"), message_for("u", "b"));
        assert_eq!(read(&mut bench, &[(5, &silent)]), None);
        let first = bench.machine.submissions(9)[0].ticket;
        bench.at(200);
        assert_eq!(read(&mut bench, &[(6, &alive)]), None);
        let second = bench.machine.submissions(9)[0].ticket;
        bench.at(300);
        bench.confirm(second);
        bench.machine.look_for_silence(0.5);
        assert_eq!(bench.machine.load().unanswered, 1);
        bench.cursor();
        bench.machine.due(vec![exception(5, &silent, ExceptionState::Retrying)], 0.5);
        bench.cursor();
        let scheduled = message_for("v", "c");
        let day = Some(Duration::from_secs(86_400));
        assert_eq!(read_in(&mut bench, &[(5, &scheduled)], day), None, "the silent one is stored");
        bench.fail(first);
        assert_eq!(bench.machine.shared_id(), Some(EntryId(5)));
        assert_eq!(bench.machine.checkpoint(), None);
    }

    /// The database still has the row of the other entry, and refuses.
    #[test]
    fn a_message_may_be_parked_where_another_one_was_removed() {
        let (parked, other) = (message_for("t", "a"), message_for("u", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        assert_eq!(read(&mut bench, &[(5, &other)]), None);
        bench.machine.due(vec![exception(5, &parked, ExceptionState::Scheduled)], 0.5);
        let submitted = bench.machine.submissions(9);
        bench.confirm(submitted[1].ticket);
        bench.fail(submitted[0].ticket);
        assert_eq!(bench.machine.shared_id(), None);
        let changes = bench.machine.checkpoint().unwrap().changes;
        assert!(matches!(&changes[..], [ExceptionChange::Park(_)]), "{changes:?}");
    }
}
