//! Whether what a mark names would survive a crash of the database. Pure.
//!
//! A mark is kept by the broker. Its cursor names transaction ids of the database, and one that was
//! not on disk when the server crashed can be given out again: then what is written under it would
//! count as read. The database's own checkpoint is safe, because it is logged behind them; so
//! before each commit something else has to be, whenever anything was read since.

/// Pages that were read, and how many of them a flush is behind.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    pages: u64,
    /// The pages before the flush that is on its way.
    begun: Option<u64>,
    done: u64,
}

impl Flushes {
    /// A page was read.
    pub(crate) fn read(&mut self) {
        self.pages += 1;
    }

    /// Whether a flush is to begin.
    pub(crate) fn are_wanted(&self) -> bool {
        self.begun.is_none() && !self.are_done()
    }

    /// Whether a flush is on its way.
    pub(crate) fn are_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// A flush was asked for, if it could be.
    pub(crate) fn begun(&mut self, is_begun: bool) {
        self.begun = is_begun.then_some(self.pages);
    }

    /// It has ended.
    pub(crate) fn done(&mut self) {
        self.done = self.begun.take().unwrap_or(self.done);
    }

    /// Whether everything that was read is on disk.
    pub(crate) fn are_done(&self) -> bool {
        self.done == self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_needs_a_flush_that_began_after_it() {
        let mut flushes = Flushes::default();
        assert!(flushes.are_done() && !flushes.are_wanted(), "nothing was read");
        flushes.read();
        assert!(flushes.are_wanted());
        flushes.begun(false);
        assert!(flushes.are_wanted(), "it could not be asked for");
        flushes.begun(true);
        assert!(!flushes.are_wanted() && !flushes.are_done() && flushes.are_begun());
        flushes.read();
        flushes.done();
        assert!(flushes.are_wanted() && !flushes.are_done(), "a page came after it had begun");
        flushes.begun(true);
        flushes.done();
        assert!(flushes.are_done() && !flushes.are_wanted() && !flushes.are_begun());
    }
}
