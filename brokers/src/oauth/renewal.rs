//! Asks for tokens within a time limit, and says when to ask for the next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::token::{Token, TokenError, TokenProvider};

/// How much earlier a token may expire than it seems: issuers count whole seconds, and their answer
/// takes time. Tokens that live for seconds would otherwise be replaced too late. A Kafka client
/// that authenticates again with the previous token does so once more soon after, and Kafka refuses
/// a second time within a second.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);
/// Minimum time between two requests for a token.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Maximum time between a failed request and the next one.
pub(crate) const AGAIN_MAX: Duration = Duration::from_secs(30);

/// A source of tokens, and how long it may take.
#[derive(Debug, Clone)]
pub(crate) struct TokenSource {
    pub(crate) provider: Arc<dyn TokenProvider>,
    /// Maximum time for getting a token.
    pub(crate) limit: Duration,
    /// The path of its settings.
    pub(crate) prefix: &'static str,
}

impl TokenSource {
    /// Asks for a token. Cancel-safe.
    ///
    /// # Errors
    /// [`TokenError`] if no token arrives within the time limit, or the source reports an error.
    pub(crate) async fn token(&self) -> Result<Token, TokenError> {
        let Self { provider, limit, prefix } = self;
        tokio::time::timeout(*limit, provider.token()).await.unwrap_or_else(|_| {
            Err(TokenError::unavailable(format!(
                "no token arrived within {} ms; check its source, or raise {prefix}.timeout_ms",
                limit.as_millis()
            )))
        })
    }
}

/// When to ask for the next token. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) due_at: Instant,
}

impl Renewal {
    /// After four fifths of the remaining lifetime, less a margin.
    pub(crate) fn of(left: Duration, now: Instant) -> Self {
        Self { due_at: now + (left.saturating_sub(MARGIN) * 4 / 5).max(AGAIN_MIN) }
    }

    /// After a failed request: soon if the token expires soon.
    pub(crate) fn after_failure(left: Duration, now: Instant) -> Self {
        Self { due_at: now + (left / 5).clamp(AGAIN_MIN, AGAIN_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_follow_the_lifetime_within_bounds() {
        let (now, secs) = (Instant::now(), Duration::from_secs);
        for (left, due) in [(3_602, 2_880), (12, 8), (3, 1), (1, 1), (0, 1)] {
            assert_eq!(Renewal::of(secs(left), now).due_at, now + secs(due), "{left}");
        }
        for (left, due) in [(3_600, 30), (100, 20), (10, 2), (0, 1)] {
            assert_eq!(Renewal::after_failure(secs(left), now).due_at, now + secs(due), "{left}");
        }
    }
}
