//! The chunks of messages, as the database keeps them.

use message::{Fingerprint, Message, MessageId};
use time::OffsetDateTime;

use crate::comparison::Duplicate;

/// The outcome of gathering a message that may be a chunk.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a whole message must be admitted"]
pub enum Gathered {
    /// It is whole, or was the last missing chunk: admit this message, in the same transaction.
    Whole(Message),
    /// It is kept until the others arrive. Commit, and settle its delivery.
    Kept {
        /// Number of chunks stored so far.
        held: u32,
        /// Number of chunks of the message.
        count: u32,
    },
    /// The message took effect before. Commit, and settle its delivery.
    Duplicate(Duplicate),
}

/// A message with missing chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// The consumer that waits for it.
    pub consumer: String,
    /// The tenant.
    pub tenant: String,
    /// The message.
    pub id: MessageId,
    /// The fingerprint of the whole, as its chunks promise it.
    pub fingerprint: Fingerprint,
    /// The topic or queue of its first chunk.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: String,
    /// The CloudEvents source.
    pub source: String,
    /// The CloudEvents time.
    pub time: OffsetDateTime,
    /// The media type.
    pub content_type: String,
    /// Size of the whole payload, in bytes.
    pub bytes: u64,
    /// When its first chunk arrived, by the database's clock.
    pub begun_at: OffsetDateTime,
    /// The chunks that have arrived, for each way in which the message was split.
    pub splits: Vec<Split>,
}

/// The chunks of one way of splitting a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Number of chunks of this split.
    pub count: u32,
    /// Indices of the stored chunks, ascending.
    pub held: Vec<u32>,
}

impl Split {
    /// Returns the indices of the missing chunks.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).filter(|index| self.held.binary_search(index).is_err())
    }
}

impl Incomplete {
    /// Returns the split that is closest to complete.
    pub(crate) fn nearest(&self) -> Option<&Split> {
        // Compares the shares as cross products: 2 of 3 is more than 3 of 5.
        self.splits.iter().max_by(|one, other| {
            let share = |held: &Split, of: &Split| held.held.len() as u64 * u64::from(of.count);
            share(one, other).cmp(&share(other, one))
        })
    }

    /// Describes which chunks are missing: `2 of 5 chunks, missing 1, 3–4`. Counts chunks from 1,
    /// for people.
    pub(crate) fn state(&self) -> String {
        let Some(split) = self.nearest() else { return String::from("no chunk") };
        let runs = runs(split.missing());
        let shown = runs.iter().take(RUNS_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if runs.len() > RUNS_SHOWN { ", …" } else { "" };
        format!("{} of {} chunks, missing {shown}{more}", split.held.len(), split.count)
    }
}

/// The chunks of a set.
pub(crate) struct Counted {
    /// Those of one split.
    pub(crate) held: u32,
    /// Number of splits with a chunk.
    pub(crate) splits: u32,
}

/// Maximum number of runs of missing chunks in one text.
const RUNS_SHOWN: usize = 16;

/// Returns runs of ascending indices, counted from 1: `1`, `3–5`.
fn runs(indices: impl Iterator<Item = u32>) -> Vec<String> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in indices.map(|index| index + 1) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}–{last}") };
    runs.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incomplete(splits: &[(u32, &[u32])]) -> Incomplete {
        let id = MessageId::new();
        let splits =
            splits.iter().map(|(count, held)| Split { count: *count, held: held.to_vec() }).collect();
        Incomplete {
            consumer: String::from("billing"),
            tenant: String::new(),
            id,
            fingerprint: Fingerprint::from([0; 32]),
            topic: String::from("orders"),
            key: None,
            kind: String::from("order.placed"),
            source: String::from("/orders"),
            time: id.generated_at(),
            content_type: String::from("application/json"),
            bytes: 9,
            begun_at: id.generated_at(),
            splits,
        }
    }

    #[test]
    fn what_is_missing_is_told_in_runs() {
        for (splits, told) in [
            (&[(5, &[1][..])][..], "1 of 5 chunks, missing 1, 3–5"),
            (&[(3, &[0, 1][..]), (5, &[0, 1, 2][..])][..], "2 of 3 chunks, missing 3"),
            (&[(3, &[0][..]), (2, &[1][..])][..], "1 of 2 chunks, missing 1"),
        ] {
            assert_eq!(incomplete(splits).state(), told);
        }
        let every_second: Vec<u32> = (0..4_000).step_by(2).collect();
        assert!(incomplete(&[(4_000, &every_second)]).state().len() < 200);
    }
}
