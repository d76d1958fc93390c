//! Tracks whether everything that a mark names would survive a crash of the database. Pure.
//!
//! The broker keeps the mark. Its cursor names transaction ids of the database. An id that was not
//! on disk when the server crashed can be assigned again, and rows written under it would then
//! count as read. The database's own checkpoint is safe, because the write-ahead log holds it
//! behind those ids. So if anything was read before a mark's checkpoint was made, some other write
//! has to reach that log before the mark is committed. Pages that are read later belong to the next
//! mark.

/// Counts the pages that were read, and how many of them a flush covers.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    pages: u64,
    /// The pages that the mark may name.
    wanted: u64,
    /// The pages that the flush in progress covers.
    begun: Option<u64>,
    done: u64,
}

impl Flushes {
    /// Records that rows were read.
    pub(crate) fn read(&mut self) {
        self.pages += 1;
    }

    /// Records that a mark may name everything that was read until now.
    pub(crate) fn want(&mut self) {
        self.wanted = self.pages;
    }

    /// Returns whether to begin a flush.
    pub(crate) fn are_wanted(&self) -> bool {
        self.begun.is_none() && !self.are_done()
    }

    /// Records that a flush was requested; `is_begun` is false if it could not be.
    pub(crate) fn begun(&mut self, is_begun: bool) {
        self.begun = is_begun.then_some(self.pages);
    }

    /// Records that the flush has ended.
    pub(crate) fn done(&mut self) {
        self.done = self.begun.take().unwrap_or(self.done);
    }

    /// Returns whether everything that the mark may name is on disk.
    pub(crate) fn are_done(&self) -> bool {
        self.done >= self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mark_may_name_needs_a_flush_that_began_after_it_was_read() {
        let mut flushes = Flushes::default();
        flushes.want();
        assert!(flushes.are_done() && !flushes.are_wanted(), "nothing was read");
        flushes.read();
        assert!(!flushes.are_wanted(), "no mark names it");
        flushes.want();
        assert!(flushes.are_wanted());
        flushes.begun(false);
        assert!(flushes.are_wanted(), "it could not be asked for");
        flushes.begun(true);
        assert!(!flushes.are_wanted() && !flushes.are_done());
        flushes.read();
        flushes.done();
        assert!(flushes.are_done(), "the page that came after it had begun is the next mark's");
        flushes.want();
        assert!(flushes.are_wanted() && !flushes.are_done());
        flushes.begun(true);
        flushes.done();
        assert!(flushes.are_done() && !flushes.are_wanted());
    }
}
