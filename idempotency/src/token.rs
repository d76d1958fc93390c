//! Keys that are tokens. Pure: no clock, no database.
//!
//! A record is kept for at least the retention after its claim. When a token is claimed, its time
//! is at most the skew ahead. So its record is kept at least until the token's own time plus the
//! retention, less the skew. A younger token without a record has never run.

use message::MessageId;
use message::token::{Drift, DriftWindow, Token};
use time::OffsetDateTime;

use crate::error::ClaimError;
use crate::id::{IdempotencyKey, KeyId};
use crate::options::ClaimOptions;

impl IdempotencyKey {
    /// Returns the key as a token, for operations that accept only tokens
    /// ([`ClaimOptions::tokens`]).
    ///
    /// # Errors
    /// [`InvalidId`](message::InvalidId) when the key is not a version 7 UUID.
    pub fn token(&self) -> Result<Token, message::InvalidId> {
        self.as_str().parse::<MessageId>().map(Token::from)
    }
}

/// The time of a key, for operations that check it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dated {
    token: Token,
    window: DriftWindow,
}

impl Dated {
    /// Returns `None` when the operation accepts any key.
    pub(crate) fn of(id: &KeyId, options: &ClaimOptions) -> Result<Option<Self>, ClaimError> {
        let Some(window) = options.window()? else { return Ok(None) };
        let token = id.key().token().map_err(ClaimError::NotAToken)?;
        Ok(Some(Self { token, window }))
    }

    /// Checks that a request without a record may run.
    pub(crate) fn validate(&self, now: OffsetDateTime) -> Result<(), Drift> {
        self.window.at(now).validate(self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use time::macros::datetime;

    #[test]
    fn what_may_have_lost_its_record_may_not_run() {
        let hour = Duration::from_secs(3_600);
        let made_at = datetime!(2026-03-15 12:00 UTC);
        let key = MessageId::derived(made_at, ["x"]).unwrap().to_string();
        let id = KeyId::of_texts("t", "charge", &key).unwrap();
        let options = ClaimOptions::default().retention(hour).tokens(Duration::from_secs(300));
        let dated = Dated::of(&id, &options).unwrap().unwrap();
        for (now, verdict) in [
            (datetime!(2026-03-15 11:54:59.999 UTC), "too_far_ahead"),
            (datetime!(2026-03-15 11:55 UTC), "accepted"),
            // Claimed at 11:55, its record may be gone at 12:55, an hour later.
            (datetime!(2026-03-15 12:55 UTC), "accepted"),
            (datetime!(2026-03-15 12:55:00.001 UTC), "too_old"),
        ] {
            assert_eq!(
                dated.validate(now).map_or_else(|drift| drift.as_str(), |()| "accepted"),
                verdict,
                "{now}"
            );
        }
    }

    #[test]
    fn a_key_without_a_time_is_refused_only_where_tokens_are_asked_for() {
        let id = KeyId::of_texts("t", "charge", "8e03978e").unwrap();
        let options = ClaimOptions::default();
        assert!(Dated::of(&id, &options).unwrap().is_none());
        let refused = Dated::of(&id, &options.tokens(Duration::ZERO)).unwrap_err();
        assert!(refused.to_string().contains("8e03978e"), "{refused}");
    }
}
