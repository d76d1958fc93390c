//! Small sets of entries, and positions in the log.

/// An entry of the log. Ids are assigned in this order, before the transactions commit.
pub type Entry = u8;

/// A set of entries below eight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Set(pub u8);

impl Set {
    /// Returns whether it holds the entry.
    #[must_use]
    pub fn has(self, entry: Entry) -> bool {
        self.0 & (1 << entry) != 0
    }

    /// Returns the set with the entry.
    #[must_use]
    pub fn with(self, entry: Entry) -> Self {
        Self(self.0 | (1 << entry))
    }

    /// Returns the set without the entries of another set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the other set has all of its entries.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.without(other).0 == 0
    }

    /// Returns its entries in the order of their ids.
    pub fn iter(self) -> impl Iterator<Item = Entry> {
        (0..8).filter(move |entry| self.has(*entry))
    }
}

/// The position of a relay: everything in `base` is settled, and in the difference up to `head`,
/// everything at or below `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cursor {
    /// The entries visible when the difference began.
    pub base: Set,
    /// The entries visible where the difference ends, and the last settled one.
    pub progress: Option<(Set, Entry)>,
}

impl Cursor {
    /// Returns a cursor inside the difference between two snapshots.
    #[must_use]
    pub fn inside(base: Set, head: Set, after: Entry) -> Self {
        Self { base, progress: Some((head, after)) }
    }

    /// Returns the entries that are settled by it.
    #[must_use]
    pub fn settled(self) -> Set {
        let Some((head, after)) = self.progress else { return self.base };
        head.without(self.base).iter().filter(|entry| *entry <= after).fold(self.base, Set::with)
    }

    /// Returns the entry to read next, with its difference, if `visible` has committed by now.
    #[must_use]
    pub fn next(self, visible: Set) -> Option<Read> {
        let in_progress = self.progress.and_then(|(head, after)| {
            let entry = head.without(self.base).iter().find(|entry| *entry > after)?;
            Some(Read { entry, base: self.base, head })
        });
        // The difference is finished: the next one begins where it ended.
        in_progress.or_else(|| {
            let base = self.progress.map_or(self.base, |(head, _)| head);
            Some(Read { entry: visible.without(base).iter().next()?, base, head: visible })
        })
    }
}

/// An entry that was read, and the difference to which it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    /// The entry.
    pub entry: Entry,
    /// The snapshot before.
    pub base: Set,
    /// The snapshot that showed it.
    pub head: Set,
}

impl Read {
    /// Returns the cursor right behind this entry.
    #[must_use]
    pub fn cursor(self) -> Cursor {
        Cursor::inside(self.base, self.head, self.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(entries: &[Entry]) -> Set {
        entries.iter().fold(Set::default(), |set, entry| set.with(*entry))
    }

    #[test]
    fn a_late_commit_is_in_a_later_difference() {
        let first = Cursor::default().next(set(&[1])).unwrap();
        assert_eq!((first.entry, first.head), (1, set(&[1])));
        let second = first.cursor().next(set(&[0, 1])).unwrap();
        assert_eq!((second.entry, second.base), (0, set(&[1])));
        assert_eq!(second.cursor().settled(), set(&[0, 1]));
        assert_eq!(second.cursor().next(set(&[0, 1])), None);
    }

    #[test]
    fn a_difference_does_not_change_once_it_is_open() {
        let first = Cursor::default().next(set(&[0, 2])).unwrap();
        let second = first.cursor().next(set(&[0, 1, 2])).unwrap();
        assert_eq!((second.entry, second.head), (2, set(&[0, 2])));
        assert_eq!(second.cursor().next(set(&[0, 1, 2])).unwrap().entry, 1);
    }
}
