//! The stable identity of a message.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::{Uuid, Variant};

/// The identity of a message, made once by its producer and carried unchanged through the outbox
/// row, the broker's headers and the inbox.
///
/// It is a UUID of version 7 (RFC 9562): its first 48 bits are the generation time in milliseconds,
/// which lets the inbox refuse an id that is older than its retention. Ids sort by that time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Uuid", into = "Uuid")]
pub struct MessageId(Uuid);

/// A text or UUID that is not a message id. The sender's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// Not a UUID at all.
    #[error("message id {value:?} is not a UUID; send a version 7 UUID (RFC 9562)")]
    Malformed {
        /// The first characters of the text.
        value: String,
    },
    /// A UUID without a generation time.
    #[error(
        "message id {value} is a UUID of version {version}, which has no generation time; send version 7, or map it with MessageId::derived"
    )]
    NotTimeOrdered {
        /// The UUID.
        value: Uuid,
        /// Its version field.
        version: usize,
    },
    /// A UUID whose version field is 7, but whose variant is not that of RFC 9562.
    #[error(
        "message id {value} has version 7, but a different variant; send a UUID of RFC 9562, whose fourth \
         group begins with 8, 9, a or b"
    )]
    WrongVariant {
        /// The UUID.
        value: Uuid,
    },
    /// A version 7 UUID with a generation time after the year 9999.
    #[error("message id {value} contains a time after the year 9999; use the current time in milliseconds")]
    NoSuchTime {
        /// The UUID.
        value: Uuid,
    },
    /// The time lies before 1970, where version 7 begins, or after the year 9999.
    #[error("the time {at} cannot be part of a message id; it must be between 1970 and the year 9999")]
    TimeOutOfRange {
        /// The time.
        at: OffsetDateTime,
    },
}

/// The last millisecond of the year 9999. 48 bits would reach the year 10889.
pub(crate) const MILLIS_MAX: u64 = 253_402_300_799_999;

impl MessageId {
    /// Returns the id of a business fact. The same time and parts always give the same id, so a
    /// producer that crashed can recreate it, and a second enqueue is recognised.
    ///
    /// `at` is a business time that can be reproduced (the order's own timestamp, not the clock).
    /// `parts` name the fact, for example aggregate, command and payload. Outbox and tenant are not
    /// included: where several outboxes (a schema for each tenant) can hold the same fact, name the
    /// outbox in the parts. Otherwise two of them make the same id, and an inbox refuses the second
    /// message. The parts are hashed with their lengths (SHA-256), so `["ab", "c"]` and
    /// `["a", "bc"]` differ. Ids of a foreign producer are mapped the same way, from its event time
    /// and its own id.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use message::MessageId;
    /// let placed_at = time::macros::datetime!(2026-03-01 12:00 UTC);
    /// let first = MessageId::derived(placed_at, ["order-7", "place", r#"{"total":12}"#])?;
    /// let again = MessageId::derived(placed_at, ["order-7", "place", r#"{"total":12}"#])?;
    /// assert_eq!(first, again);
    /// assert_eq!(first.generated_at(), placed_at);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidId::TimeOutOfRange`] when `at` lies before 1970 or after the year 9999.
    pub fn derived<P: AsRef<[u8]>>(
        at: OffsetDateTime,
        parts: impl IntoIterator<Item = P>,
    ) -> Result<Self, InvalidId> {
        let millis = millis_of(at)?;
        let mut hash = Sha256::new();
        for part in parts {
            let part = part.as_ref();
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut random = [0_u8; 10];
        random.copy_from_slice(&digest[..10]);
        Ok(Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()))
    }

    /// Returns the time at which the id was generated, to the millisecond.
    #[must_use]
    pub fn generated_at(self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_millis(self.millis())
    }

    /// Returns the time at which the id was generated, in milliseconds since 1970.
    #[must_use]
    pub fn millis(self) -> u64 {
        // The first 48 bits (RFC 9562 section 5.7).
        (self.0.as_u128() >> 80) as u64
    }

    /// Returns the smallest possible id of a time, for the bounds of partitions.
    ///
    /// # Errors
    /// [`InvalidId::TimeOutOfRange`] as for [`MessageId::derived`].
    pub fn floor(at: OffsetDateTime) -> Result<Uuid, InvalidId> {
        let millis = millis_of(at)?;
        Ok(Uuid::from_u128(u128::from(millis) << 80))
    }

    /// Wraps a UUID from a generator: version 7, with a time that exists.
    pub(crate) fn of_generator(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the UUID itself.
    #[must_use]
    pub fn as_uuid(self) -> Uuid {
        self.0
    }
}

/// Converts a time to the 48 bits that version 7 has for it (RFC 9562 section 5.7).
pub(crate) fn millis_of(at: OffsetDateTime) -> Result<u64, InvalidId> {
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000)
        .ok()
        .filter(|millis| *millis <= MILLIS_MAX)
        .ok_or(InvalidId::TimeOutOfRange { at })
}

impl TryFrom<Uuid> for MessageId {
    type Error = InvalidId;

    fn try_from(value: Uuid) -> Result<Self, Self::Error> {
        let version = value.get_version_num();
        if version != 7 {
            return Err(InvalidId::NotTimeOrdered { value, version });
        }
        if value.get_variant() != Variant::RFC4122 {
            return Err(InvalidId::WrongVariant { value });
        }
        let id = Self(value);
        if id.millis() > MILLIS_MAX { Err(InvalidId::NoSuchTime { value }) } else { Ok(id) }
    }
}

impl From<MessageId> for Uuid {
    fn from(value: MessageId) -> Self {
        value.0
    }
}

impl FromStr for MessageId {
    type Err = InvalidId;

    /// Reads an id in one of the spellings of a UUID, in upper or lower case: with its hyphens,
    /// such a one in braces or after `urn:uuid:`, or as 32 digits. Nothing may be around it.
    ///
    /// # Errors
    /// [`InvalidId`]: another spelling, or a UUID that is no message id.
    fn from_str(value: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(value)
            .map_err(|_| InvalidId::Malformed { value: value.chars().take(64).collect() })?
            .try_into()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn ids_of_one_process_ascend() {
        let ids: Vec<_> = (0..10_000).map(|_| MessageId::new()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_derived_id_depends_on_time_and_on_every_part() {
        let at = datetime!(2026-03-01 12:00:00.123 UTC);
        let base = MessageId::derived(at, ["ab", "c"]).unwrap();
        assert_eq!(base, MessageId::derived(at, ["ab", "c"]).unwrap());
        assert_ne!(base, MessageId::derived(at, ["a", "bc"]).unwrap());
        assert_ne!(base, MessageId::derived(at + Duration::from_millis(1), ["ab", "c"]).unwrap());
        assert_eq!(base.generated_at(), at);
        assert_eq!(base.to_string().parse::<MessageId>().unwrap(), base);
    }

    #[test]
    fn times_that_do_not_fit_are_refused() {
        assert!(MessageId::derived(datetime!(1969-12-31 23:59 UTC), ["x"]).is_err());
        assert!(MessageId::derived(datetime!(1970-01-01 0:00 UTC), ["x"]).is_ok());
    }

    #[test]
    fn texts_without_a_generation_time_are_refused() {
        assert!(matches!("".parse::<MessageId>(), Err(InvalidId::Malformed { .. })));
        assert!(matches!("nonsense".parse::<MessageId>(), Err(InvalidId::Malformed { .. })));
        let v4 = "0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55".parse::<MessageId>();
        assert!(matches!(v4, Err(InvalidId::NotTimeOrdered { version: 4, .. })));
    }

    #[test]
    fn an_id_of_another_variant_is_reported_as_such() {
        for group in ["0f63", "7f63", "cf63", "ff63"] {
            let text = format!("0190b5a2-6a8b-7c1e-{group}-1d2f0a9b7c55");
            let error = text.parse::<MessageId>().unwrap_err();
            assert!(matches!(error, InvalidId::WrongVariant { .. }), "{error}");
            assert!(error.to_string().contains("begins with 8, 9, a or b"), "{error}");
        }
        for version in ['1', '4', '8'] {
            let text = format!("0190b5a2-6a8b-{version}c1e-0f63-1d2f0a9b7c55");
            assert!(matches!(text.parse::<MessageId>(), Err(InvalidId::NotTimeOrdered { .. })));
        }
    }

    #[test]
    fn an_id_from_after_the_year_9999_is_refused_and_not_computed_with() {
        let of = |millis: u64| {
            MessageId::try_from(uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid())
        };
        assert_eq!(of(MILLIS_MAX).unwrap().generated_at(), datetime!(9999-12-31 23:59:59.999 UTC));
        for millis in [MILLIS_MAX + 1, (1 << 48) - 1] {
            assert!(of(millis).unwrap_err().to_string().contains("after the year 9999"));
        }
    }

    #[test]
    fn the_floor_of_a_time_is_below_every_id_of_it() {
        let at = datetime!(2026-03-01 12:00 UTC);
        let floor = MessageId::floor(at).unwrap();
        assert!(floor <= MessageId::derived(at, ["x"]).unwrap().as_uuid());
        let before = MessageId::derived(at - Duration::from_millis(1), ["x"]).unwrap();
        assert!(before.as_uuid() < floor);
    }
}
