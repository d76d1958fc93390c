//! Names of consumers, and ids of their dead letters.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::text::TEXT_BYTES_MAX;

crate::name! {
    /// The name of a consumer: one per handler, the same in all its processes. Two consumers on one
    /// table both handle every message. 1 to 255 bytes, no control characters.
    ///
    /// A renamed consumer is a new consumer, which has not seen any message yet.
    ConsumerName, "consumer name", TEXT_BYTES_MAX, "control characters are not allowed", |c| !c.is_control()
}

/// The id of a dead letter; ascends with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId(pub Uuid);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for DeadLetterId {
    type Err = uuid::Error;
    fn from_str(value: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(value).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::InvalidText;

    #[test]
    fn bad_names_are_refused_with_their_limit() {
        assert_eq!(
            ConsumerName::new(""),
            Err(InvalidText::Empty { what: "consumer name", bytes_max: TEXT_BYTES_MAX })
        );
        assert!(ConsumerName::new("c".repeat(255)).is_ok());
        let error = ConsumerName::new("c".repeat(256)).unwrap_err().to_string();
        assert!(error.contains("256 bytes; the limit is 255"), "{error}");
    }
}
