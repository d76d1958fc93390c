//! The other side: verifies signed requests and reads their messages.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use message::{Malformed, Message};

use super::secrets::Secrets;
use super::{signature, wire};
use crate::settings::InvalidSetting;

/// Maximum age of a signature, and how far it may lie in the future (recommendation of Standard
/// Webhooks).
const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Verifies the signatures of requests (Standard Webhooks) and reads their messages. For receivers,
/// in front of an inbox.
///
/// A signature covers id, time and body. In binary mode it does not cover the other attributes,
/// such as type and key. Where something between relay and receiver may change headers, let the
/// relay use structured mode, and the receiver accept no other
/// ([`structured_only`](Self::structured_only)).
#[derive(Debug)]
pub struct Verifier {
    secrets: Secrets,
    structured_only: bool,
}

/// The reason why a request is not accepted. Answer with the status 400 or 401: nothing in the
/// request can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// A header is missing or is not text.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// The signature is too old, or from the future.
    #[error("the signature was made at {0}, more than 300 s from now; check the clocks, or it is a replay")]
    Time(String),
    /// No signature was made with one of the secrets.
    #[error("no signature is by a known secret")]
    Signature,
    /// The id of the message is not the id that was signed.
    #[error("the message has another id than its signature")]
    OtherId,
    /// The request is in binary mode, and only structured mode is accepted.
    #[error("the request is in binary mode, in which type and key are not signed")]
    Binary,
    /// The secrets cannot be read. The fault of the receiver: answer with the status 503.
    #[error("{0}")]
    NoSecrets(InvalidSetting),
}

impl Verifier {
    /// Uses the secrets in these files (`whsec_…`, one a line). They are read again when they
    /// change.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file that cannot be read.
    pub fn new(secret_files: &[PathBuf]) -> Result<Self, InvalidSetting> {
        let secrets = Secrets::new("secret_files", secret_files);
        secrets.keys()?;
        Ok(Self { secrets, structured_only: false })
    }

    /// Accepts only requests in structured mode, whose signature covers all attributes. Otherwise,
    /// whoever can change headers can turn such a request into one in binary mode, with another
    /// type and the whole event as its payload.
    #[must_use]
    pub fn structured_only(self) -> Self {
        Self { structured_only: true, ..self }
    }

    /// Verifies the signature of a request, and reads its message. The outer error is about the
    /// signature, the inner one about the message.
    ///
    /// # Errors
    /// [`Unverified`]; in it [`Malformed`], with everything that arrived.
    pub fn read(
        &self,
        topic: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Result<Message, Box<Malformed>>, Unverified> {
        let id = self.verify(headers, &body, SystemTime::now())?.to_owned();
        if self.structured_only && !wire::is_structured(headers) {
            return Err(Unverified::Binary);
        }
        let read = wire::read(topic, headers, body);
        match &read {
            Ok(message) if wire::identity(message) != id => Err(Unverified::OtherId),
            _ => Ok(read),
        }
    }

    /// Verifies the signature of a request. Returns its id.
    ///
    /// # Errors
    /// [`Unverified`] with the reason.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<&'a str, Unverified> {
        let header =
            |name| headers.get(name).and_then(|value| value.to_str().ok()).ok_or(Unverified::Missing(name));
        let id = header(signature::ID)?;
        let timestamp = header(signature::TIMESTAMP)?;
        let signatures = header(signature::SIGNATURE)?;
        let late = || Unverified::Time(timestamp.chars().take(20).collect());
        let signed_at = timestamp.parse().ok().map(Duration::from_secs).ok_or_else(late)?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if signed_at.abs_diff(now) > TOLERANCE {
            return Err(late());
        }
        let keys = self.secrets.keys().map_err(Unverified::NoSecrets)?;
        if signature::verify(&keys, id, timestamp, body, signatures) {
            Ok(id)
        } else {
            Err(Unverified::Signature)
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use message::{EventType, Topic};

    use super::*;
    use crate::http::config::Mode;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn signed(message: &Message, mode: Mode, at: SystemTime) -> (HeaderMap, Bytes) {
        let record = wire::encode(message, mode, None, 1 << 20).unwrap();
        let keys = signature::read_keys(SECRET).unwrap();
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string();
        let signature = signature::sign(&keys, &record.id, &at, &record.body);
        let mut headers = record.headers;
        for (name, value) in
            [(signature::ID, record.id), (signature::TIMESTAMP, at), (signature::SIGNATURE, signature)]
        {
            headers.insert(name, HeaderValue::try_from(value).unwrap());
        }
        (headers, record.body)
    }

    #[test]
    fn only_a_fresh_signature_over_the_same_message_is_accepted() {
        let path = std::env::temp_dir().join(format!("{}-whsec", uuid::Uuid::now_v7()));
        assert!(Verifier::new(std::slice::from_ref(&path)).is_err());
        std::fs::write(&path, SECRET).unwrap();
        let verifier = Verifier::new(std::slice::from_ref(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
        let other = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
        let now = SystemTime::now();
        let (headers, body) = signed(&message, Mode::Binary, now);
        assert_eq!(verifier.read("x", &headers, body.clone()).unwrap().unwrap(), message);
        assert_eq!(
            verifier.read("x", &headers, Bytes::from_static(b"[]")).unwrap_err(),
            Unverified::Signature
        );
        let mut forged = headers.clone();
        forged.insert("ce-id", HeaderValue::try_from(other.id.to_string()).unwrap());
        assert_eq!(verifier.read("x", &forged, body.clone()).unwrap_err(), Unverified::OtherId);
        for name in [signature::ID, signature::TIMESTAMP, signature::SIGNATURE] {
            let mut without = headers.clone();
            without.remove(name);
            assert_eq!(verifier.verify(&without, &body, now), Err(Unverified::Missing(name)));
        }
        for (moved, accepted) in [(299, true), (302, false)] {
            let moved = Duration::from_secs(moved);
            assert_eq!(verifier.verify(&headers, &body, now + moved).is_ok(), accepted, "{moved:?}");
            assert_eq!(verifier.verify(&headers, &body, now - moved).is_ok(), accepted, "-{moved:?}");
        }
    }
    /// Goal: a receiver of structured requests takes nothing from a header, although the signature
    /// still fits the request that somebody has changed. Oracle: the message, and the refusals.
    #[test]
    fn a_structured_request_cannot_be_turned_into_a_binary_one() {
        let path = std::env::temp_dir().join(format!("{}-whsec", uuid::Uuid::now_v7()));
        std::fs::write(&path, SECRET).unwrap();
        let verifier = Verifier::new(std::slice::from_ref(&path)).unwrap().structured_only();
        std::fs::remove_file(&path).unwrap();
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
        let (mut headers, body) = signed(&message, Mode::Structured, SystemTime::now());
        headers.insert("ce-type", HeaderValue::from_static("forged"));
        assert_eq!(verifier.read("x", &headers, body.clone()).unwrap().unwrap(), message);
        let id = HeaderValue::try_from(message.id.to_string()).unwrap();
        for (name, value) in [
            ("ce-id", id),
            ("content-type", HeaderValue::from_static("application/json")),
            ("content-type", HeaderValue::from_static("application/cloudevents-batch+json")),
        ] {
            let mut changed = headers.clone();
            changed.insert(name, value);
            assert_eq!(verifier.read("x", &changed, body.clone()).unwrap_err(), Unverified::Binary, "{name}");
        }
        // The first of several is the one that counts.
        let mut twice = headers.clone();
        twice.append("content-type", HeaderValue::from_static("application/json"));
        assert_eq!(verifier.read("x", &twice, body).unwrap().unwrap(), message);
    }
}
