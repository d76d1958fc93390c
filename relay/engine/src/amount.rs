//! A number of messages, with their bytes.

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    /// The number of messages.
    pub(crate) entries: usize,
    /// Their bytes on the wire.
    pub(crate) bytes: usize,
}

impl Amount {
    /// Returns the amount of one message with these bytes on the wire.
    #[must_use]
    pub(crate) fn of(bytes: usize) -> Self {
        Self { entries: 1, bytes }
    }

    /// Returns the amount of both together.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { entries: self.entries + other.entries, bytes: self.bytes + other.bytes }
    }

    /// Returns the rest after a part is subtracted.
    #[must_use]
    pub(crate) fn minus(self, part: Self) -> Self {
        Self { entries: self.entries - part.entries, bytes: self.bytes - part.bytes }
    }

    /// Returns whether the number or the bytes have reached this limit.
    #[must_use]
    pub(crate) fn reaches(self, limit: Self) -> bool {
        self.entries >= limit.entries || self.bytes >= limit.bytes
    }

    /// Returns whether the number or the bytes are above this limit.
    #[must_use]
    pub(crate) fn exceeds(self, limit: Self) -> bool {
        self.entries > limit.entries || self.bytes > limit.bytes
    }
}
