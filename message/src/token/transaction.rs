//! Ids that name a database transaction. Pure: `outbox::postgres::transaction_ids` asks the
//! database.

use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::id::{InvalidId, MessageId, millis_of};

/// The part of an id that differs for every transaction: when it began, its id and its cluster.
///
/// | bits | what |
/// |---|---|
/// | 48 | milliseconds since 1970 at which the transaction began, plus the upper bits of the counter |
/// | 4 | version 7 |
/// | 12 | the lower bits of the counter within the transaction |
/// | 2 | variant |
/// | 40 | the lower bits of the transaction id |
/// | 22 | a digest of the cluster's identifier and its timeline |
///
/// Within one cluster and timeline a transaction id is assigned once, so no two ids are equal. 40
/// bits wrap around after 10^12 transactions; by then the milliseconds differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionStamp {
    millis: u64,
    rest: u128,
}

impl TransactionStamp {
    /// The maximum number of ids in a transaction. They run ahead of its time by at most a quarter
    /// of a second.
    pub const IDS_MAX: u32 = 1 << 20;

    /// Makes the stamp of transaction `transaction` of a cluster, which began at this time. The
    /// timeline separates the cluster after a failover from the one before: the last transaction
    /// ids of the old primary may be assigned again.
    ///
    /// # Errors
    /// [`InvalidId::TimeOutOfRange`] when the time does not fit an id.
    pub fn new(
        began_at: OffsetDateTime,
        transaction: u64,
        system_identifier: &str,
        timeline: u32,
    ) -> Result<Self, InvalidId> {
        let mut hash = Sha256::new();
        hash.update(timeline.to_be_bytes());
        hash.update(system_identifier);
        let digest = hash.finalize();
        let cluster = u32::from_be_bytes([0, digest[0], digest[1], digest[2]]) >> 2;
        let rest = (u128::from(transaction & ((1 << 40) - 1)) << 22) | u128::from(cluster);
        Ok(Self { millis: millis_of(began_at)?, rest })
    }

    /// Returns the id with this number within the transaction; `None` from
    /// [`IDS_MAX`](Self::IDS_MAX) on.
    #[must_use]
    pub fn id(&self, number: u32) -> Option<MessageId> {
        let (ahead, counter) = (u64::from(number >> 12), (number & 0xfff) as u16);
        (number < Self::IDS_MAX).then(|| MessageId::of_bits(self.millis + ahead, counter, self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use time::macros::datetime;

    const AT: OffsetDateTime = datetime!(2026-03-15 12:00:00.25 UTC);

    fn stamp(transaction: u64, system: &str, timeline: u32) -> TransactionStamp {
        TransactionStamp::new(AT, transaction, system, timeline).unwrap()
    }

    #[test]
    fn ids_are_of_version_7_and_ascend_within_the_transaction() {
        let ids: Vec<_> = (0..10_000).map(|n| stamp(77, "a", 1).id(n).unwrap()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| MessageId::try_from(id.as_uuid()).is_ok()));
        assert_eq!(ids[0].generated_at(), AT);
        assert_eq!(stamp(77, "a", 1).id(TransactionStamp::IDS_MAX), None);
    }

    #[test]
    fn transactions_clusters_and_timelines_are_apart_at_the_same_moment() {
        let mut seen = HashSet::new();
        for transaction in [0, 1, 2, 3, (1 << 40) - 1, u64::from(u32::MAX)] {
            for (system, timeline) in
                [("7300000000000000001", 1), ("7300000000000000001", 2), ("7300000000000000002", 1)]
            {
                for number in 0..3 {
                    assert!(seen.insert(stamp(transaction, system, timeline).id(number).unwrap()));
                }
            }
        }
        assert_eq!(stamp(5, "a", 1), stamp(5, "a", 1));
    }
}
