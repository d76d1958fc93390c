//! Options of idempotency keys, and their bounds.

use std::time::Duration;

use message::token::{DriftWindow, InvalidWindow};
use migrations::Identifier;

use crate::inbox::{AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN};
use crate::within::{CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN};

/// How long outcomes are kept by default.
pub const KEY_RETENTION_DEFAULT: Duration = Duration::from_secs(86_400);
/// The shortest retention.
pub const KEY_RETENTION_MIN: Duration = Duration::from_secs(60);
/// The longest retention.
pub const KEY_RETENTION_MAX: Duration = Duration::from_secs(366 * 86_400);
/// How long a key is held by default before somebody else may have it.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(60);
/// The shortest lease.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// How often keys are maintained by default.
pub const MAINTAIN_EVERY_DEFAULT: Duration = Duration::from_secs(30);
const MAINTAIN_EVERY_MIN: Duration = Duration::from_secs(1);
const MAINTAIN_EVERY_MAX: Duration = Duration::from_secs(3_600);

/// How long a request waits for an answer of the database by default.
pub const KEY_CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Options with which the handle is opened.
#[derive(Debug, Clone)]
pub struct KeyOptions {
    /// The longest retention that any operation asks for, and the default of each:
    /// [`KEY_RETENTION_MIN`] to [`KEY_RETENTION_MAX`], 24 hours by default. Each key carries its
    /// own.
    pub retention: Duration,
    /// How long decisions of operators are kept:
    /// [`AUDIT_RETENTION_MIN`](crate::AUDIT_RETENTION_MIN) to
    /// [`AUDIT_RETENTION_MAX`](crate::AUDIT_RETENTION_MAX),
    /// [three years](crate::AUDIT_RETENTION_DEFAULT) by default.
    pub audit_retention: Duration,
    /// The PostgreSQL schema of the table; without one the `search_path` finds it. SQLite has none.
    pub schema: Option<Identifier>,
    /// How often this process forgets what has expired and reports expired leases, in the
    /// background: 1 s to 1 h, 30 s by default. See
    /// [`IdempotencyKeys::maintain`](super::IdempotencyKeys::maintain).
    pub maintain_every: Duration,
    /// How long a call to the database may take, the wait for a connection included:
    /// [`CALL_TIMEOUT_MIN`](crate::CALL_TIMEOUT_MIN) to
    /// [`CALL_TIMEOUT_MAX`](crate::CALL_TIMEOUT_MAX), 30 s by default. Then the connection is given
    /// up, and the caller gets an error: over HTTP 503. It does not bound the statements of the
    /// caller's own.
    pub call_timeout: Duration,
}

impl Default for KeyOptions {
    fn default() -> Self {
        Self {
            retention: KEY_RETENTION_DEFAULT,
            audit_retention: AUDIT_RETENTION_DEFAULT,
            schema: None,
            maintain_every: MAINTAIN_EVERY_DEFAULT,
            call_timeout: KEY_CALL_TIMEOUT_DEFAULT,
        }
    }
}

/// The policy for a key whose holder let its lease expire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum OnExpired {
    /// The next one who asks runs the request again. Right where running it twice does no harm,
    /// because everything it calls honours the key.
    #[default]
    TakeOver,
    /// It waits for an operator (`relay keys list`, `release`, `discard`). Right where running it
    /// twice does harm, because something that it calls does not honour the key.
    Refuse,
}

/// How one operation uses its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimOptions {
    /// How long the key is held without a sign of life: [`LEASE_MIN`] to [`LEASE_MAX`], 60 s by
    /// default. Of a key that a transaction holds: how long the transaction may be idle
    /// (PostgreSQL).
    pub lease: Duration,
    /// How long the outcome is kept; not more than [`KeyOptions::retention`], which is the default.
    pub retention: Option<Duration>,
    /// The policy for a key whose lease has expired.
    pub on_expired: OnExpired,
    /// Keys have to be tokens (version 7 UUIDs), made at most so far ahead of the database's clock:
    /// up to a day. Then a request whose record may have expired is refused, and not run again. By
    /// default any key will do.
    pub token_skew_max: Option<Duration>,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        let on_expired = OnExpired::default();
        Self { lease: LEASE_DEFAULT, retention: None, on_expired, token_skew_max: None }
    }
}

impl OnExpired {
    /// The word in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TakeOver => "take_over",
            Self::Refuse => "refuse",
        }
    }
}

impl ClaimOptions {
    /// Sets the lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long the outcome is kept.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Sets what becomes of a key whose lease has expired.
    #[must_use]
    pub fn on_expired(mut self, on_expired: OnExpired) -> Self {
        self.on_expired = on_expired;
        self
    }

    /// Takes only tokens as keys, made at most so far ahead of the database's clock.
    #[must_use]
    pub fn tokens(mut self, skew_max: Duration) -> Self {
        self.token_skew_max = Some(skew_max);
        self
    }

    /// The times of tokens that may run without a record; nothing where any key will do. Of the
    /// options in force, so with a retention.
    pub(crate) fn window(&self) -> Result<Option<DriftWindow>, OptionOutOfBounds> {
        let Some(skew_max) = self.token_skew_max else { return Ok(None) };
        let retention = self.retention.unwrap_or(KEY_RETENTION_DEFAULT);
        let window = DriftWindow::new(retention.saturating_sub(skew_max), skew_max);
        window.map(Some).map_err(|InvalidWindow { what, value, min, max }| OptionOutOfBounds {
            what,
            value,
            min,
            max,
        })
    }

    /// The retention in force, after a look at the bounds.
    pub(crate) fn check(&self, longest: Duration) -> Result<Duration, OptionOutOfBounds> {
        bounded("lease", self.lease, LEASE_MIN, LEASE_MAX)?;
        let retention = self.retention.unwrap_or(longest);
        bounded("retention of an operation", retention, KEY_RETENTION_MIN, longest)?;
        Ok(retention)
    }
}

impl KeyOptions {
    pub(crate) fn check(&self) -> Result<(), OptionOutOfBounds> {
        bounded("retention of idempotency keys", self.retention, KEY_RETENTION_MIN, KEY_RETENTION_MAX)?;
        bounded("audit retention", self.audit_retention, AUDIT_RETENTION_MIN, AUDIT_RETENTION_MAX)?;
        bounded("pause of maintenance", self.maintain_every, MAINTAIN_EVERY_MIN, MAINTAIN_EVERY_MAX)?;
        bounded("call timeout", self.call_timeout, CALL_TIMEOUT_MIN, CALL_TIMEOUT_MAX)
    }
}

/// An option is out of its bounds. The program's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} of {value:?} is out of bounds; choose {min:?} to {max:?}")]
pub struct OptionOutOfBounds {
    /// Which.
    pub what: &'static str,
    /// Its value.
    pub value: Duration,
    /// The smallest accepted.
    pub min: Duration,
    /// The largest accepted.
    pub max: Duration,
}

fn bounded(
    what: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), OptionOutOfBounds> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(OptionOutOfBounds { what, value, min, max }) }
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
        assert_eq!(told, "the lease of 0ns is out of bounds; choose 1s to 86400s");
    }
}
