//! The same message ids on every attempt.

use message::MessageId;

/// The ids that a piece of work has asked for, in order. A second attempt gets the same ones: its messages are the
/// first attempt's, whatever became of that.
#[derive(Debug, Default)]
pub(crate) struct IdTape {
    ids: Vec<MessageId>,
    next: usize,
}

impl IdTape {
    /// The next id.
    pub(crate) fn next(&mut self) -> MessageId {
        if self.next == self.ids.len() {
            self.ids.push(MessageId::new());
        }
        let id = self.ids[self.next];
        self.next += 1;
        id
    }

    /// Back to the first id.
    pub(crate) fn rewind(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_attempt_gets_the_same_ids() {
        let mut tape = IdTape::default();
        let first = [tape.next(), tape.next()];
        tape.rewind();
        assert_eq!([tape.next(), tape.next()], first);
        assert!(tape.next() > first[1]);
    }
}
