//! Cuts a mark into records, and reassembles it. Pure.
//!
//! Every record of a mark carries the mark's number, its own place and the count of records. Its
//! key is its place: compaction keeps the last record of each place, and thus every record of the
//! last mark. Records of earlier, longer marks remain; their lower number identifies them.

use std::collections::BTreeMap;

use message::TransactionMark;

/// Maximum bytes of a mark in one record: below the default limit of every broker and topic.
const PART_BYTES: usize = 512 << 10;
/// Maximum bytes of a mark.
const MARK_BYTES_MAX: usize = 64 << 20;
/// Written first, so that a later version can recognize its own.
const VERSION: u8 = 1;
/// Version, number, place, count.
const PREFIX: usize = 1 + 8 + 2 + 2;

/// Cuts a mark into record values; the key of each is its place.
///
/// # Errors
/// The size and the limit of a mark that is too large.
pub(super) fn cut(mark: &TransactionMark) -> Result<Vec<Vec<u8>>, String> {
    let bytes = mark.content.len();
    if bytes > MARK_BYTES_MAX {
        return Err(format!("the mark of a transaction has {bytes} bytes; the maximum is {MARK_BYTES_MAX}"));
    }
    let count = bytes.div_ceil(PART_BYTES).max(1);
    let number = |value: usize| u16::try_from(value).map_err(|_| format!("a mark has {count} parts"));
    (0..count)
        .map(|at| {
            let content = &mark.content[at * PART_BYTES..bytes.min((at + 1) * PART_BYTES)];
            let mut value = Vec::with_capacity(PREFIX + content.len());
            value.push(VERSION);
            value.extend(mark.number.to_be_bytes());
            value.extend(number(at)?.to_be_bytes());
            value.extend(number(count)?.to_be_bytes());
            value.extend(content);
            Ok(value)
        })
        .collect()
}

/// The records read so far that have the highest number.
#[derive(Debug, Default)]
pub(super) struct Parts {
    number: u64,
    count: u16,
    found: BTreeMap<u16, Vec<u8>>,
}

impl Parts {
    /// Adds a record.
    ///
    /// # Errors
    /// The reason why the record is not part of a mark.
    pub(super) fn take(&mut self, value: &[u8]) -> Result<(), String> {
        let (prefix, content) = value.split_at_checked(PREFIX).ok_or("it is too short")?;
        let &[VERSION, a, b, c, d, e, f, g, h, at_high, at_low, count_high, count_low] = prefix else {
            return Err(format!("it has version {}, but this program supports {VERSION}", prefix[0]));
        };
        let number = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let (at, count) =
            (u16::from_be_bytes([at_high, at_low]), u16::from_be_bytes([count_high, count_low]));
        if at >= count || content.len() > PART_BYTES {
            return Err(format!("it is part {at} of {count} with {} bytes", content.len()));
        }
        if number > self.number || self.found.is_empty() {
            *self = Self { number, count, found: BTreeMap::new() };
        }
        if number == self.number {
            if count != self.count {
                return Err(format!("mark {number} has {} parts and {count} parts", self.count));
            }
            self.found.insert(at, content.to_vec());
        }
        Ok(())
    }

    /// Returns the mark with the highest number, once all of it was read.
    pub(super) fn mark(&self) -> Option<TransactionMark> {
        let is_whole = self.count > 0 && self.found.len() == usize::from(self.count);
        let content = || self.found.values().flatten().copied().collect();
        is_whole.then(|| TransactionMark { number: self.number, content: content() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, bytes: usize) -> TransactionMark {
        TransactionMark { number, content: (0..bytes).map(|at| (at % 251) as u8).collect() }
    }

    #[test]
    fn a_mark_of_any_size_comes_back_whole() {
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let mark = mark(7, bytes);
            let mut parts = Parts::default();
            for value in cut(&mark).unwrap() {
                assert_eq!(parts.mark(), None, "not before its last part");
                parts.take(&value).unwrap();
            }
            assert_eq!(parts.mark(), Some(mark));
        }
        assert!(cut(&mark(1, MARK_BYTES_MAX + 1)).unwrap_err().contains("67108864"));
    }

    #[test]
    fn what_compaction_leaves_of_an_earlier_mark_is_passed_over() {
        let (long, short) = (cut(&mark(1, 2 * PART_BYTES)).unwrap(), cut(&mark(2, 9)).unwrap());
        for values in [[&long[1], &short[0]], [&short[0], &long[1]]] {
            let mut parts = Parts::default();
            values.into_iter().for_each(|value| parts.take(value).unwrap());
            assert_eq!(parts.mark(), Some(mark(2, 9)));
        }
    }

    #[test]
    fn a_record_that_is_no_part_is_an_error() {
        let mut parts = Parts::default();
        let mut other = cut(&mark(1, 9)).unwrap().remove(0);
        other[0] = 9;
        for (value, problem) in [(&b"{}"[..], "too short"), (&other, "version 9")] {
            assert!(parts.take(value).unwrap_err().contains(problem));
        }
    }
}
