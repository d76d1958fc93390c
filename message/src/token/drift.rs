//! Windows of accepted times. Pure: no clock, no database.

use std::time::Duration;

use time::OffsetDateTime;

use super::pair::Token;
use crate::bounds::OutOfBounds;
use crate::fault::Fault;
use crate::id::MessageId;

/// The maximum age of an accepted token, and its maximum lead over the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriftWindow {
    age_max: Duration,
    skew_max: Duration,
}

impl DriftWindow {
    /// The smallest maximum age: a smaller age would refuse tokens that are only slow.
    pub const AGE_MIN: Duration = Duration::from_secs(60);
    /// The largest maximum age: no record is kept for longer.
    pub const AGE_MAX: Duration = Duration::from_secs(366 * 86_400);
    /// The largest skew.
    pub const SKEW_MAX: Duration = Duration::from_secs(86_400);
    /// 14 days back and 5 minutes ahead: the default of an inbox.
    pub const DEFAULT: Self =
        Self { age_max: Duration::from_secs(14 * 86_400), skew_max: Duration::from_secs(300) };

    /// The widest window that can be configured.
    pub const WIDEST: Self = Self { age_max: Self::AGE_MAX, skew_max: Self::SKEW_MAX };

    /// Makes a window. `age_max` is between [`AGE_MIN`](Self::AGE_MIN) and
    /// [`AGE_MAX`](Self::AGE_MAX), `skew_max` is at most [`SKEW_MAX`](Self::SKEW_MAX).
    ///
    /// # Errors
    /// [`OutOfBounds`] with the value and its bounds.
    pub fn new(age_max: Duration, skew_max: Duration) -> Result<Self, OutOfBounds> {
        OutOfBounds::check("maximum age of ids", age_max, Self::AGE_MIN..=Self::AGE_MAX)?;
        OutOfBounds::check("allowed clock skew", skew_max, Duration::ZERO..=Self::SKEW_MAX)?;
        Ok(Self { age_max, skew_max })
    }

    /// Returns the times that are accepted at `now`.
    #[must_use]
    pub fn at(&self, now: OffsetDateTime) -> AcceptedTimes {
        let signed = |duration: Duration| duration.try_into().unwrap_or(time::Duration::MAX);
        AcceptedTimes {
            oldest_accepted_at: now.saturating_sub(signed(self.age_max)),
            newest_accepted_at: now.saturating_add(signed(self.skew_max)),
        }
    }

    /// Checks that an id is still accepted when its message is delivered.
    ///
    /// # Errors
    /// [`ScheduledTooFar`].
    pub fn check_delivery(&self, id: MessageId, deliver_at: OffsetDateTime) -> Result<(), ScheduledTooFar> {
        let made_at = id.generated_at();
        let latest_at = made_at.saturating_add(made_at - self.at(made_at).oldest_accepted_at);
        if deliver_at <= latest_at { Ok(()) } else { Err(ScheduledTooFar { id, deliver_at, latest_at }) }
    }
}

/// A message whose id would be older at its delivery than consumers accept: every one of them would
/// refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "message {id} is to be delivered at {deliver_at}; consumers accept its id until {latest_at}, so none would \
     apply it: enqueue it later, or give the inboxes a longer retention, and the outbox the same value with \
     ids_accepted"
)]
pub struct ScheduledTooFar {
    /// The id.
    pub id: MessageId,
    /// When it should be delivered.
    pub deliver_at: OffsetDateTime,
    /// The latest time that is allowed.
    pub latest_at: OffsetDateTime,
}

impl Default for DriftWindow {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The times that are accepted at a given time, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedTimes {
    /// The oldest accepted time.
    pub oldest_accepted_at: OffsetDateTime,
    /// The newest accepted time.
    pub newest_accepted_at: OffsetDateTime,
}

impl AcceptedTimes {
    /// Checks the time of a token.
    ///
    /// # Errors
    /// [`Drift`].
    pub fn validate(&self, token: impl Into<Token>) -> Result<(), Drift> {
        let token = token.into();
        let Self { oldest_accepted_at, newest_accepted_at } = *self;
        if token.generated_at < oldest_accepted_at {
            Err(Drift::TooOld { token, oldest_accepted_at })
        } else if token.generated_at > newest_accepted_at {
            Err(Drift::TooFarAhead { token, newest_accepted_at })
        } else {
            Ok(())
        }
    }
}

/// A token whose time is not accepted. Its maker is at fault; sending it again does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Drift {
    /// Its record may have expired, so it is unknown whether it was used before.
    #[error(
        "token {} was generated at {}, and tokens from before {oldest_accepted_at} are no longer remembered: find out whether it took effect, and generate a new one if it did not",
        token.id,
        token.generated_at
    )]
    TooOld {
        /// The token.
        token: Token,
        /// The oldest time that is accepted at present.
        oldest_accepted_at: OffsetDateTime,
    },
    /// It would outlive its record, and sort after everything that others make meanwhile.
    #[error(
        "token {} was generated at {}, but the newest accepted time is {newest_accepted_at}: correct the clock or the business time that it was generated from",
        token.id,
        token.generated_at
    )]
    TooFarAhead {
        /// The token.
        token: Token,
        /// The newest time that is accepted at present.
        newest_accepted_at: OffsetDateTime,
    },
}

impl Drift {
    /// Returns the refused token.
    #[must_use]
    pub fn token(&self) -> Token {
        match self {
            Self::TooOld { token, .. } | Self::TooFarAhead { token, .. } => *token,
        }
    }

    /// Returns the party at fault: always the message.
    #[must_use]
    pub fn fault(&self) -> Fault {
        Fault::Message
    }

    /// Returns the word for metrics and logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TooOld { .. } => "too_old",
            Self::TooFarAhead { .. } => "too_far_ahead",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;
    use uuid::Uuid;

    const NOW: OffsetDateTime = datetime!(2026-03-15 12:00 UTC);

    fn validated(at: OffsetDateTime) -> &'static str {
        let token = Token { generated_at: at, id: Uuid::nil() };
        DriftWindow::DEFAULT.at(NOW).validate(token).map_or_else(|drift| drift.as_str(), |()| "accepted")
    }

    #[test]
    fn both_ends_are_accepted_and_nothing_beyond() {
        for (at, verdict) in [
            (datetime!(2026-03-01 11:59:59.999 UTC), "too_old"),
            (datetime!(2026-03-01 12:00 UTC), "accepted"),
            (NOW, "accepted"),
            (datetime!(2026-03-15 12:05 UTC), "accepted"),
            (datetime!(2026-03-15 12:05:00.001 UTC), "too_far_ahead"),
        ] {
            assert_eq!(validated(at), verdict, "{at}");
        }
    }

    #[test]
    fn a_drift_names_both_times() {
        for (at, other) in [
            (datetime!(2026-02-01 0:00 UTC), "2026-03-01 12:00:00.0"),
            (datetime!(2026-04-01 0:00 UTC), "2026-03-15 12:05:00.0"),
        ] {
            let drift = DriftWindow::DEFAULT.at(NOW).validate(Token { generated_at: at, id: Uuid::nil() });
            let told = drift.unwrap_err().to_string();
            assert!(told.contains(&at.to_string()) && told.contains(other), "{told}");
        }
    }

    #[test]
    fn ends_out_of_bounds_are_refused_with_their_bounds() {
        let day = Duration::from_secs(86_400);
        assert!(DriftWindow::new(DriftWindow::AGE_MAX, DriftWindow::SKEW_MAX).is_ok());
        assert!(DriftWindow::new(Duration::ZERO, day).is_err() && DriftWindow::new(367 * day, day).is_err());
        let told = DriftWindow::new(day, 2 * day).unwrap_err().to_string();
        assert_eq!(told, "the allowed clock skew is 2d; choose 0s to 1d");
    }

    #[test]
    fn the_ends_of_time_are_computed_with() {
        let earliest = time::PrimitiveDateTime::MIN.assume_utc();
        assert_eq!(DriftWindow::DEFAULT.at(earliest).oldest_accepted_at, earliest);
    }
}
