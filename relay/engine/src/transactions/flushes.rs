//! Whether what a mark names would survive a crash of the database. Pure.
//!
//! A mark is kept by the broker. Its cursor names transaction ids of the database, and one that was
//! not on disk when the server crashed can be given out again: then what is written under it would
//! count as read. The database's own checkpoint is safe, because it is logged behind them; so
//! before each commit something else has to be, whenever anything was read before its checkpoint
//! was made. What is read afterwards is the next mark's.

/// Pages that were read, and how many of them a flush is behind.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    pages: u64,
    /// The pages that the mark may name.
    wanted: u64,
    /// The pages before the flush that is on its way.
    begun: Option<u64>,
    done: u64,
}

impl Flushes {
    /// A page was read.
    pub(crate) fn read(&mut self) {
        self.pages += 1;
    }

    /// A mark may name everything that was read until now.
    pub(crate) fn want(&mut self) {
        self.wanted = self.pages;
    }

    /// Whether a flush is to begin.
    pub(crate) fn are_wanted(&self) -> bool {
        self.begun.is_none() && !self.are_done()
    }

    /// A flush was asked for, if it could be.
    pub(crate) fn begun(&mut self, is_begun: bool) {
        self.begun = is_begun.then_some(self.pages);
    }

    /// It has ended.
    pub(crate) fn done(&mut self) {
        self.done = self.begun.take().unwrap_or(self.done);
    }

    /// Whether everything that the mark may name is on disk.
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
