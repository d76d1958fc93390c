//! A number of messages, with their bytes.

use message::Message;

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
<<<<<<< HEAD
pub struct Amount {
    /// The number of messages.
    pub entries: usize,
    /// Their bytes on the wire.
    pub bytes: usize,
=======
pub(crate) struct Amount {
    /// The number of messages.
    pub(crate) entries: usize,
    /// Their bytes on the wire.
    pub(crate) bytes: usize,
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
}

impl Amount {
    /// Returns the amount of one message.
    #[must_use]
<<<<<<< HEAD
    pub fn of(message: &Message) -> Self {
=======
    pub(crate) fn of(message: &Message) -> Self {
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
        Self { entries: 1, bytes: message.wire_bytes() }
    }

    /// Returns the amount of both together.
    #[must_use]
<<<<<<< HEAD
    pub fn plus(self, other: Self) -> Self {
=======
    pub(crate) fn plus(self, other: Self) -> Self {
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
        Self { entries: self.entries + other.entries, bytes: self.bytes + other.bytes }
    }

    /// Returns what is left without a part of it.
    #[must_use]
<<<<<<< HEAD
    pub fn minus(self, part: Self) -> Self {
=======
    pub(crate) fn minus(self, part: Self) -> Self {
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
        Self { entries: self.entries - part.entries, bytes: self.bytes - part.bytes }
    }

    /// Returns whether the number or the bytes have reached this limit.
    #[must_use]
<<<<<<< HEAD
    pub fn reaches(self, limit: Self) -> bool {
=======
    pub(crate) fn reaches(self, limit: Self) -> bool {
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
        self.entries >= limit.entries || self.bytes >= limit.bytes
    }

    /// Returns whether the number or the bytes are above this limit.
    #[must_use]
<<<<<<< HEAD
    pub fn exceeds(self, limit: Self) -> bool {
=======
    pub(crate) fn exceeds(self, limit: Self) -> bool {
>>>>>>> ac55a27c4df2695049abf8beba6af6fee6c08da8
        self.entries > limit.entries || self.bytes > limit.bytes
    }
}
