//! Looks for entries that share an id, before they are taken in.
//!
//! Everything here is known by its id: what is blocked, held, changed and passed. A log whose
//! sequence was set back can have two entries of one id, and the second would pass for the first.
//! They are told apart by their message ids, and the log gives the later ones new ids.

use std::collections::HashMap;

use outbox::log::{Entry, EntryId, ExceptionChange, Page};

use super::Machine;

impl Machine {
    /// An id that two entries share: two of this page, or one of it and one that is not settled and
    /// stored. The page must not be taken in then.
    ///
    /// Ids mostly rise: only those are looked up that do not lie above all before.
    pub fn shared_id(&mut self, page: &Page) -> Option<EntryId> {
        let mut low: HashMap<EntryId, &Entry> = HashMap::new();
        let mut last = None;
        for entry in &page.entries {
            if last.replace(entry.id) == Some(entry.id) {
                return Some(entry.id);
            }
            if entry.id <= self.highest {
                low.insert(entry.id, entry);
            }
        }
        self.highest = self.highest.max(last.unwrap_or_default());
        if low.is_empty() {
            return None;
        }
        let in_window = self.window.shared_id(&low);
        in_window.or_else(|| low.into_values().find(|entry| self.is_of_another(entry)).map(|entry| entry.id))
    }

    /// Whether memory knows another message under the id of an entry.
    fn is_of_another(&self, entry: &Entry) -> bool {
        let parked = |change: &ExceptionChange| match change {
            ExceptionChange::Park(parked) => parked.message_id != entry.message_id(),
            // The row of another one would be found by the database.
            ExceptionChange::Resolve(_) => false,
        };
        self.changes.get(&entry.id).is_some_and(parked)
            || self.storing.get(&entry.id).is_some_and(parked)
            || self.awaited.message_id(entry.id).is_some_and(|id| id.to_string() != entry.message_id())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use message::{MaxInFlightPerKey, Message};
    use outbox::log::{Difference, ExceptionState, Mark};

    use super::super::bench::{Bench, exception, message_for};
    use super::*;

    fn page(entries: &[(i64, &Message)]) -> Page {
        let entry = |(id, message): &(i64, &Message)| Entry {
            id: EntryId(*id),
            message: Ok((*message).clone()),
            deliver_in: None,
        };
        Page { entries: entries.iter().map(entry).collect(), exhausted: true }
    }

    fn read(bench: &mut Bench, page: Page) {
        assert_eq!(bench.machine.shared_id(&page), None);
        let difference = Arc::new(Difference { base: Mark::new("0"), head: Mark::new("1"), ceiling: 9 });
        bench.machine.page(&difference, page);
    }

    #[test]
    fn two_entries_of_one_id_are_found_wherever_the_first_one_is() {
        let (one, other) = (message_for("t", "a"), message_for("t", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        let shared = Some(EntryId(5));
        assert_eq!(bench.machine.shared_id(&page(&[(5, &one), (5, &other)])), shared, "in one page");

        read(&mut bench, page(&[(3, &message_for("t", "c")), (5, &one), (7, &message_for("t", "d"))]));
        assert_eq!(bench.machine.shared_id(&page(&[(4, &other), (6, &one)])), None, "late, and by itself");
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), shared, "queued");
        let submitted = bench.machine.submissions(9);
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), shared, "in flight");
        bench.confirm(submitted[1].ticket);
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), shared, "not passed");
        bench.confirm(submitted[0].ticket);
        bench.confirm(submitted[2].ticket);
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), None, "passed");
    }

    #[test]
    fn an_entry_of_the_id_of_a_parked_one_is_found_until_that_is_stored() {
        let (one, other) = (message_for("t", "a"), message_for("t", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        bench.machine.due(vec![exception(5, &one, ExceptionState::Scheduled)], 0.5);
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), Some(EntryId(5)), "read back");
        let submitted = bench.machine.submissions(9);
        bench.fail(submitted[0].ticket);
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), Some(EntryId(5)), "parked anew");
        assert_eq!(bench.machine.shared_id(&page(&[(5, &one)])), None, "itself");
        assert!(bench.machine.checkpoint().is_some());
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), Some(EntryId(5)), "on its way");
        bench.machine.checkpointed();
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), None, "the database tells them apart");
    }

    #[test]
    fn an_entry_of_the_id_of_one_that_is_waited_for_is_found() {
        let (one, other) = (message_for("t", "a"), message_for("u", "b"));
        let mut bench = Bench::new(MaxInFlightPerKey::One);
        read(&mut bench, page(&[(5, &one)]));
        assert_eq!(bench.machine.submissions(9).len(), 1);
        bench.at(200);
        read(&mut bench, page(&[(6, &other)]));
        let submitted = bench.machine.submissions(9);
        bench.at(300);
        bench.confirm(submitted[0].ticket);
        bench.machine.look_for_silence(0.5);
        assert_eq!(bench.machine.awaited_len(), 1);
        assert!(bench.machine.checkpoint().is_some());
        bench.machine.checkpointed();
        assert_eq!(bench.machine.shared_id(&page(&[(5, &other)])), Some(EntryId(5)));
    }
}
