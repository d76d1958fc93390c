//! Options of idempotency keys, and their bounds.

use std::time::Duration;

use message::OutOfBounds;
use message::token::DriftWindow;
use migrations::Identifier;
use outbox::{
    AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN, CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN,
};

/// Default retention of outcomes.
const KEY_RETENTION_DEFAULT: Duration = Duration::from_secs(86_400);
/// Minimum retention.
const KEY_RETENTION_MIN: Duration = Duration::from_secs(60);
/// Maximum retention.
const KEY_RETENTION_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Default time that a key is held before another caller may have it.
const LEASE_DEFAULT: Duration = Duration::from_secs(60);
/// Minimum lease.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Maximum lease.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// Default interval of maintenance.
const MAINTAIN_EVERY_DEFAULT: Duration = Duration::from_secs(30);
const MAINTAIN_EVERY_MIN: Duration = Duration::from_secs(1);
const MAINTAIN_EVERY_MAX: Duration = Duration::from_secs(3_600);

/// Default time that a request waits for an answer from the database.
const KEY_CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Default maximum number of requests of a process that wait for the outcome of another one.
const WAITERS_MAX_DEFAULT: usize = 256;
/// Default maximum number of requests of a process that wait for one key.
const WAITERS_PER_KEY_MAX_DEFAULT: usize = 16;

/// Options of the handle. Start from [`KeyOptions::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeyOptions {
    /// Maximum retention of any operation, and the default of each: 1 minute to 366 days, 24 hours
    /// by default. Each key stores its own.
    pub retention: Duration,
    /// How long decisions of operators are kept: 31 days to a century, three years by default.
    pub audit_retention: Duration,
    /// The PostgreSQL schema of the table; `None` uses the `search_path`. SQLite has no schemas.
    pub schema: Option<Identifier>,
    /// Interval at which this process forgets expired keys and reports expired leases, in the
    /// background: 1 s to 1 h, 30 s by default. See
    /// [`IdempotencyKeys::maintain`](crate::IdempotencyKeys::maintain).
    pub maintain_every: Duration,
    /// How long a call to the database may take: 1 s to 1 h, 30 s by default. Then the connection
    /// is dropped, and the caller gets an error: over HTTP 503. Where a transaction begins, the
    /// limit applies separately to waiting for the connection and to BEGIN. It does not apply to
    /// the caller's own statements.
    pub call_timeout: Duration,
    /// Maximum number of requests of this process that wait for the outcome of another one, on
    /// routes of the HTTP layer that allow it: 256 by default. Further ones are answered with 409
    /// at once. It counts the requests of all layers that share this handle.
    pub waiters_max: usize,
    /// The same for one key: 16 by default. A client that repeats its request impatiently takes no
    /// more places than these.
    pub waiters_per_key_max: usize,
}

impl Default for KeyOptions {
    fn default() -> Self {
        Self {
            retention: KEY_RETENTION_DEFAULT,
            audit_retention: AUDIT_RETENTION_DEFAULT,
            schema: None,
            maintain_every: MAINTAIN_EVERY_DEFAULT,
            call_timeout: KEY_CALL_TIMEOUT_DEFAULT,
            waiters_max: WAITERS_MAX_DEFAULT,
            waiters_per_key_max: WAITERS_PER_KEY_MAX_DEFAULT,
        }
    }
}

message::words! {
    /// The policy for a key whose lease has expired.
    #[derive(Default, Hash)]
    pub enum OnExpired {
        /// The next caller runs the request again. Use it when running twice does no harm, because
        /// everything that the request calls honours the key.
        #[default]
        TakeOver = "take_over",
        /// The key waits for an operator (`relay keys list`, `release`, `discard`). Use it when
        /// running twice does harm, because something that the request calls does not honour the
        /// key.
        Refuse = "refuse",
    }
}

impl OnExpired {
    /// Returns the policy that the column `refuses` describes.
    pub(crate) fn of_column(refuses: bool) -> Self {
        if refuses { Self::Refuse } else { Self::TakeOver }
    }
}

/// Options of one operation for its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimOptions {
    /// How long the key is held without renewal: 1 s to 24 h, 60 s by default.
    /// For a key held by a transaction: how long the transaction may be idle (PostgreSQL).
    pub lease: Duration,
    /// How long the outcome is kept; at most [`KeyOptions::retention`], which is the default.
    pub retention: Option<Duration>,
    /// The policy for a key whose lease has expired.
    pub on_expired: OnExpired,
    /// Requires keys to be tokens (version 7 UUIDs), made at most this far ahead of the database's
    /// clock: up to a day. Then a request whose record may have expired is refused instead of
    /// running again. `None`, the default, accepts any key.
    pub token_skew_max: Option<Duration>,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        let on_expired = OnExpired::default();
        Self { lease: LEASE_DEFAULT, retention: None, on_expired, token_skew_max: None }
    }
}

impl ClaimOptions {
    message::setters! {
        /// Sets the lease.
        lease: Duration,
        /// Sets the policy for a key whose lease has expired.
        on_expired: OnExpired,
    }

    /// Sets how long the outcome is kept.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Accepts only tokens as keys, made at most `skew_max` ahead of the database's clock.
    #[must_use]
    pub fn tokens(mut self, skew_max: Duration) -> Self {
        self.token_skew_max = Some(skew_max);
        self
    }

    /// Returns the times of tokens that may run without a record; `None` when any key is accepted.
    /// Call it on the options in force, which have a retention.
    pub(crate) fn window(&self) -> Result<Option<DriftWindow>, OutOfBounds> {
        let Some(skew_max) = self.token_skew_max else { return Ok(None) };
        let retention = self.retention.unwrap_or(KEY_RETENTION_DEFAULT);
        DriftWindow::new(retention.saturating_sub(skew_max), skew_max).map(Some)
    }

    /// Checks the bounds and returns the retention in force.
    pub(crate) fn check(&self, longest: Duration) -> Result<Duration, OutOfBounds> {
        OutOfBounds::check("lease", self.lease, LEASE_MIN..=LEASE_MAX)?;
        let retention = self.retention.unwrap_or(longest);
        OutOfBounds::check("retention of an operation", retention, KEY_RETENTION_MIN..=longest)?;
        Ok(retention)
    }
}

impl KeyOptions {
    message::setters! {
        /// Sets the maximum retention of any operation, and the default of each.
        retention: Duration,
        /// Sets how long decisions of operators are kept.
        audit_retention: Duration,
        /// Sets the PostgreSQL schema of the table.
        schema as Option<Identifier>,
        /// Sets the interval of maintenance.
        maintain_every: Duration,
        /// Sets how long a call to the database may take.
        call_timeout: Duration,
        /// Sets the maximum number of requests of this process that wait for the outcome of another
        /// one.
        waiters_max: usize,
        /// Sets the maximum number of requests of this process that wait for one key.
        waiters_per_key_max: usize,
    }
}

impl KeyOptions {
    pub(crate) fn check(&self) -> Result<(), OutOfBounds> {
        let retention = KEY_RETENTION_MIN..=KEY_RETENTION_MAX;
        let audit = AUDIT_RETENTION_MIN..=AUDIT_RETENTION_MAX;
        let pause = MAINTAIN_EVERY_MIN..=MAINTAIN_EVERY_MAX;
        OutOfBounds::check("retention of idempotency keys", self.retention, retention)?;
        OutOfBounds::check("audit retention", self.audit_retention, audit)?;
        OutOfBounds::check("pause of maintenance", self.maintain_every, pause)?;
        OutOfBounds::check("call timeout", self.call_timeout, CALL_TIMEOUT_MIN..=CALL_TIMEOUT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_told() {
        let longest = KEY_RETENTION_DEFAULT;
        let options = ClaimOptions::default();
        assert_eq!(options.check(longest), Ok(longest));
        assert_eq!(options.retention(KEY_RETENTION_MIN).check(longest), Ok(KEY_RETENTION_MIN));
        assert!(options.retention(longest * 2).check(longest).is_err());
        let told = options.lease(Duration::ZERO).check(longest).unwrap_err().to_string();
        assert_eq!(told, "the lease is 0s; choose 1s to 1d");
    }
}
