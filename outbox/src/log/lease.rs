//! Who may move the cursor.

use std::fmt;
use std::time::Duration;

use crate::log::cursor::Cursor;

/// The name under which a relay keeps its cursor: 1 to 63 characters of `a–z 0–9 - _`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayName(String);

/// A text that cannot name a relay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("relay name {0:?} is not usable; give it 1 to 63 characters of a-z, 0-9, - and _")]
pub struct InvalidRelayName(String);

impl RelayName {
    /// Checks the text and takes it over.
    ///
    /// # Errors
    /// [`InvalidRelayName`] with the text.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidRelayName> {
        let name = name.into();
        let fits = (1..=63).contains(&name.len());
        let accepted = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if fits && name.bytes().all(accepted) {
            Ok(Self(name))
        } else {
            Err(InvalidRelayName(name.chars().take(64).collect()))
        }
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A granted lease. Its epoch fences every write: a later holder has a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The fencing token.
    pub epoch: i64,
    /// How long it lasts from the moment it was asked for, unless it is renewed.
    pub ttl: Duration,
}

/// The answer to asking for the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// This process holds it now; go on from the cursor.
    Granted {
        /// The lease.
        lease: Lease,
        /// Where the last holder stood.
        cursor: Cursor,
        /// Who held it before, when the lease was taken over after it expired.
        taken_over_from: Option<String>,
    },
    /// Another process holds it.
    Busy {
        /// Who.
        holder: String,
        /// When it expires, unless it is renewed.
        expires_in: Duration,
    },
}

/// The answer to a write that carries an epoch. Losing the lease is a normal result, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lost lease means to stop"]
pub enum Fenced {
    /// Done.
    Held,
    /// Nothing was changed: another process has taken over.
    Lost,
}
