//! Fingerprints of the content that must not change under one message id.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// SHA-256 over event type, content type and payload. The inbox stores it and refuses the same id
/// with a different fingerprint: that is a producer's bug, and silently applying or dropping either
/// copy would lose an effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of a message from its parts.
    #[must_use]
    pub fn of_parts(kind: &str, content_type: &str, payload: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [kind.as_bytes(), content_type.as_bytes(), payload] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Returns the 32 bytes, as stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Fingerprint {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// The bytes are not those of a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has {bytes} bytes instead of 32")]
pub struct FingerprintLength {
    /// The number of bytes.
    pub bytes: usize,
}

impl TryFrom<&[u8]> for Fingerprint {
    type Error = FingerprintLength;

    fn try_from(bytes: &[u8]) -> Result<Self, FingerprintLength> {
        bytes.try_into().map(Self).map_err(|_| FingerprintLength { bytes: bytes.len() })
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has 64 hexadecimal digits")]
pub struct InvalidFingerprint;

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidFingerprint);
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| InvalidFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
