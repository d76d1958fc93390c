//! Repeats the same message ids on every attempt.

use message::MessageId;
use message::token::{IdGenerator, MintError};

/// The ids that a unit of work has requested, in order. A second attempt gets the same ids: its
/// messages are those of the first attempt, whatever the outcome of that attempt.
#[derive(Debug, Default)]
pub(crate) struct ReplayedIds {
    ids: Vec<MessageId>,
    next: usize,
}

impl ReplayedIds {
    /// Returns the next id.
    pub(crate) fn next(&mut self, ids: &dyn IdGenerator) -> Result<MessageId, MintError> {
        if self.next == self.ids.len() {
            self.ids.push(ids.mint()?);
        }
        let id = self.ids[self.next];
        self.next += 1;
        Ok(id)
    }

    /// Goes back to the first id.
    pub(crate) fn rewind(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::token::ProcessIds;

    #[test]
    fn a_second_attempt_gets_the_same_ids() {
        let mut tape = ReplayedIds::default();
        let next = |tape: &mut ReplayedIds| tape.next(&ProcessIds).unwrap();
        let first = [next(&mut tape), next(&mut tape)];
        tape.rewind();
        assert_eq!([next(&mut tape), next(&mut tape)], first);
        assert!(next(&mut tape) > first[1]);
    }
}
