//! The lease: permission to move the cursor.

use std::time::Duration;

use crate::cursor::Cursor;

/// The longest name of a relay in bytes.
const RELAY_NAME_BYTES_MAX: usize = 63;

message::name! {
    /// The name under which a relay keeps its cursor: 1 to 63 characters of `a–z 0–9 - _`.
    RelayName, "relay name", RELAY_NAME_BYTES_MAX, "allowed are a-z, 0-9, - and _",
    |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_'
}

/// A granted lease. Its epoch and its holder fence every write: a later holder has a larger epoch.
/// The epochs of a name begin again only after its relay was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The fencing token.
    pub epoch: i64,
    /// Duration from the request, unless it is renewed.
    pub ttl: Duration,
}

/// The answer to a request for the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// This process now holds the lease. Continue from the cursor.
    Granted {
        /// The lease.
        lease: Lease,
        /// The position of the previous holder.
        cursor: Cursor,
        /// The previous holder, when the lease was taken over after it expired.
        taken_over_from: Option<String>,
    },
    /// Another process holds it.
    Busy {
        /// The holder.
        holder: String,
        /// Time until it expires, unless it is renewed.
        expires_in: Duration,
    },
}

/// Another process that holds the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHolder {
    /// The holder.
    pub holder: String,
    /// Time until the lease expires, unless it is renewed.
    pub expires_in: Duration,
}

/// The result of a write that carries an epoch. Losing the lease is a normal result, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "whoever loses the lease must stop"]
pub enum Fenced {
    /// The write is done.
    Held,
    /// Nothing was changed: another process has taken over.
    Lost,
}
