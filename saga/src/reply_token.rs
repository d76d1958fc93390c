//! Tokens by which a reply proves that its sender has seen the request.
//!
//! The key of a request can be guessed: type, id and step. So each saga has a random secret, and a
//! request carries a token made of that secret and of its step. The service that got the request
//! copies the token into the reply. The token of one request reveals nothing about others.

use std::fmt;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// Length of a secret in bytes.
const BYTES: usize = 16;

/// The secret of a saga. Empty in records that are read without contents.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Makes the secret of a new saga, from the operating system's random numbers.
    pub(crate) fn random() -> Self {
        Self(rand::random::<[u8; BYTES]>().to_vec())
    }

    /// Wraps a secret from the database.
    pub(crate) fn stored(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the token for the request of a step, as hexadecimal digits.
    pub(crate) fn token(&self, step: &str) -> String {
        hex::encode(self.mac(step).finalize().into_bytes())
    }

    /// Returns whether a token is the one of the request of a step. Takes the same time for every
    /// wrong token of the right length.
    pub(crate) fn accepts(&self, step: &str, token: &str) -> bool {
        let Ok(token) = hex::decode(token) else { return false };
        self.0.len() >= BYTES && self.mac(step).verify_slice(&token).is_ok()
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    fn mac(&self, step: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(step.as_bytes());
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_saga_and_one_step() {
        let (secret, other) = (Secret::random(), Secret::random());
        let token = secret.token("ship");
        assert!(secret.accepts("ship", &token));
        assert!(!secret.accepts("fetch", &token) && !other.accepts("ship", &token));
        for wrong in ["", "00", "no hex", &token[..62], &token.replace(['0', '1', '2', '3'], "4")] {
            assert!(!secret.accepts("ship", wrong), "{wrong}");
        }
    }

    #[test]
    fn a_record_without_contents_accepts_nothing_and_shows_nothing() {
        let none = Secret::stored(Vec::new());
        assert!(!none.accepts("ship", &none.token("ship")));
        assert_eq!(format!("{:?}", Secret::random()), "Secret(..)");
    }
}
