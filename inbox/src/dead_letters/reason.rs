//! Why a delivery was dead-lettered, and how a dead letter was closed.

use crate::refusal::Refusal;

message::words! {
    /// Why a delivery was dead-lettered.
    #[derive(Hash)]
    #[non_exhaustive]
    pub enum Reason {
        /// Its handler failed too often.
        Poison = "poison",
        /// Its handler rejected it.
        Rejected = "rejected",
        /// Its id was already used with a different payload.
        KeyReused = "key_reused",
        /// It is older than the inbox remembers.
        TooOld = "too_old",
        /// Its time is too far in the future.
        FromTheFuture = "from_the_future",
        /// It is not a valid message, or a chunk that cannot be part of one.
        Malformed = "malformed",
        /// Some of its chunks did not arrive in time.
        Incomplete = "incomplete",
        /// Its tenant is unknown: the function for tenants panicked or refused.
        NoTenant = "no_scope",
        /// An earlier dead letter of its key is open, so it was not handled:
        /// [`AfterDeadLetter::HoldKey`](crate::AfterDeadLetter::HoldKey).
        Held = "held",
    }

    /// How a dead letter was closed.
    #[derive(Hash)]
    #[non_exhaustive]
    pub enum Resolution {
        /// Redriven: its effect and its inbox row were committed together.
        Applied = "applied",
        /// Redriven too late for an inbox row; this dead letter is the only record of its effect.
        AppliedLate = "applied_late",
        /// Redriven, but the message had already taken effect.
        Duplicate = "duplicate",
        /// Discarded by an operator.
        Discarded = "discarded",
    }
}

/// Why a delivery becomes a dead letter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Cause {
    /// The reason.
    pub reason: Reason,
    /// The last error.
    pub error: String,
    /// Number of times the handler failed.
    pub attempts: u32,
}

impl Cause {
    /// Makes a cause: the reason, the last error, and the number of times the handler failed.
    #[must_use]
    pub fn new(reason: Reason, error: String, attempts: u32) -> Self {
        Self { reason, error, attempts }
    }
}

impl From<&Refusal> for Reason {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::KeyReused { .. } | Refusal::OtherSource { .. } => Self::KeyReused,
            Refusal::TooOld { .. } => Self::TooOld,
            Refusal::FromTheFuture { .. } => Self::FromTheFuture,
            Refusal::Fragment { .. } | Refusal::Chunk { .. } => Self::Malformed,
        }
    }
}

impl Reason {
    /// Returns whether its message gets a row in the inbox, which makes further copies of the
    /// message duplicates.
    pub(crate) fn has_row(self) -> bool {
        match self {
            Self::Poison | Self::Rejected | Self::Held => true,
            Self::KeyReused
            | Self::TooOld
            | Self::FromTheFuture
            | Self::Malformed
            | Self::Incomplete
            | Self::NoTenant => false,
        }
    }

    /// Returns whether the failures that are recorded under its id may be those of another message,
    /// which has the id as well: then they still count.
    pub(crate) fn spares_failures(self) -> bool {
        matches!(self, Self::KeyReused | Self::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statements::Texts;
    use crate::tables::Tables;

    /// Whether a dead letter holds its key, because its message may still take effect.
    fn holds_key(reason: Reason) -> bool {
        match reason {
            Reason::Poison | Reason::Rejected | Reason::TooOld | Reason::FromTheFuture | Reason::Held => true,
            Reason::KeyReused | Reason::Malformed | Reason::Incomplete | Reason::NoTenant => false,
        }
    }

    fn holding<DB: Texts>() -> Vec<Reason> {
        let tables = Tables::<DB>::new(None);
        let sql = tables.shared.holder_before.as_str();
        let (_, list) = sql.split_once("reason IN (").expect("the condition");
        let (list, _) = list.split_once(')').expect("its end");
        list.split(", ").map(|word| Reason::from_word(word.trim_matches('\'')).expect("a reason")).collect()
    }

    #[test]
    fn statements_hold_the_keys_of_the_same_reasons() {
        let expected: Vec<_> = Reason::ALL.iter().copied().filter(|reason| holds_key(*reason)).collect();
        #[cfg(feature = "postgres")]
        assert_eq!(holding::<sqlx::Postgres>(), expected);
        #[cfg(feature = "sqlite")]
        assert_eq!(holding::<sqlx::Sqlite>(), expected);
    }

    #[test]
    fn words_are_read_back() {
        assert!(Reason::ALL.iter().all(|reason| Reason::from_word(reason.as_str()) == Some(*reason)));
        assert!(Resolution::ALL.iter().all(|how| Resolution::from_word(how.as_str()) == Some(*how)));
    }
}
