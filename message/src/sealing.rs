//! Payloads that are encrypted for a subject, such as a person. Whoever deletes the key of the
//! subject erases every copy at once: in the outbox, at the broker, in dead letters and in backups.

use std::error::Error;

use async_trait::async_trait;
use bytes::Bytes;

use crate::header::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::text::{ContentType, InvalidText};

/// The content type of a message whose payload is encrypted.
pub const SEALED_CONTENT_TYPE: &str = "application/vnd.outbox.sealed";
/// The content type of a row whose content an operator has erased (`relay erase`).
pub const ERASED_CONTENT_TYPE: &str = "application/vnd.outbox.erased";
/// The header with the name of the subject for which a payload is encrypted.
pub const SEALED_FOR: &str = "sealed-for";
/// The header with the content type that the payload has once it is decrypted.
pub const SEALED_TYPE: &str = "sealed-content-type";

/// Encrypts and decrypts payloads with a key for each subject. A service implements it over its key
/// store and a cipher with authentication (AEAD).
///
/// The name of the subject travels in a header, which everyone can read: outside the key store it
/// should identify no person. The toolkit stores and compares the encrypted bytes. So the same
/// message under the same id must have the same bytes, or a producer that enqueues it again gets
/// [`IdReused`](https://docs.rs/outbox-toolkit): derive the nonce from the message id, with a
/// cipher for which a repeated nonce is harmless, such as AES-256-GCM-SIV. Authenticate the id and
/// the subject with the payload: then a payload that was moved to another message does not open.
#[async_trait]
pub trait Sealing: Send + Sync + 'static {
    /// Encrypts a payload, with the subject's key, which it makes if there is none.
    ///
    /// # Errors
    /// [`SealingError`]. A subject whose key was deleted must not get another one.
    async fn seal(&self, subject: &str, id: MessageId, payload: &[u8]) -> Result<Vec<u8>, SealingError>;

    /// Decrypts a payload. Returns `None` if the key of the subject was deleted.
    ///
    /// A key that the store merely does not know is not deleted: return
    /// [`SealingError::Unavailable`], or the message is skipped for good. A store therefore
    /// remembers which keys it has deleted.
    ///
    /// # Errors
    /// [`SealingError`].
    async fn open(
        &self,
        subject: &str,
        id: MessageId,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, SealingError>;
}

/// Why a payload was not encrypted or decrypted. Its text must hold neither keys nor payloads: it
/// is stored with failures and dead letters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealingError {
    /// The key store does not answer, or does not know the key yet: try again later.
    #[error("the key store is unavailable")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// It will never succeed: the payload was changed, or the subject's key was deleted before it
    /// was encrypted.
    #[error("the payload cannot be encrypted or decrypted")]
    Refused(#[source] Box<dyn Error + Send + Sync>),
    /// The name of the subject or the content type is not a valid header.
    #[error(transparent)]
    Header(#[from] InvalidText),
}

impl SealingError {
    /// Makes an error for a key store that does not answer.
    #[must_use]
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }

    /// Makes an error for a payload that can never be encrypted or decrypted.
    #[must_use]
    pub fn refused(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused(error.into())
    }
}

/// A message whose payload a consumer has decrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opened {
    /// It was not encrypted.
    Plain,
    /// Its payload and content type are those that its producer encrypted.
    Message(Box<Message>),
    /// The key of its subject was deleted.
    Erased,
}

/// Decrypts a message, if it is encrypted. For consumers without the runner; the runner does it by
/// itself. Cancel-safe if the sealing is.
///
/// # Errors
/// [`SealingError`], also for an encrypted message without the headers that name its subject and
/// its content type.
pub async fn open_message(sealing: &dyn Sealing, message: &Message) -> Result<Opened, SealingError> {
    if message.content_type.as_str() != SEALED_CONTENT_TYPE {
        return Ok(Opened::Plain);
    }
    let header = |name| {
        let missing = || SealingError::refused(format!("an encrypted message needs the header {name}"));
        message.headers.get(name).ok_or_else(missing)
    };
    let subject = header(SEALED_FOR)?;
    let content_type = ContentType::new(header(SEALED_TYPE)?)?;
    Ok(match sealing.open(subject, message.id, &message.payload).await? {
        Some(payload) => {
            let payload = Bytes::from(payload);
            Opened::Message(Box::new(Message { payload, content_type, ..message.clone() }))
        }
        None => Opened::Erased,
    })
}

/// Adds the headers of an encrypted payload.
#[doc(hidden)]
pub fn mark_sealed(
    headers: &mut Headers,
    subject: &str,
    content_type: &ContentType,
) -> Result<(), InvalidText> {
    headers.insert(SEALED_FOR, subject)?;
    headers.insert(SEALED_TYPE, content_type.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{EventType, Topic};

    /// Inverts every bit; the key of `gone` was deleted.
    struct Inverted;

    #[async_trait]
    impl Sealing for Inverted {
        async fn seal(&self, _: &str, _: MessageId, payload: &[u8]) -> Result<Vec<u8>, SealingError> {
            Ok(payload.iter().map(|byte| !byte).collect())
        }

        async fn open(
            &self,
            subject: &str,
            id: MessageId,
            sealed: &[u8],
        ) -> Result<Option<Vec<u8>>, SealingError> {
            if subject == "gone" { Ok(None) } else { self.seal(subject, id, sealed).await.map(Some) }
        }
    }

    fn message(subject: Option<&str>, content_type: &str) -> Message {
        let (topic, kind) = (Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap());
        let mut message = Message::new(topic, kind, vec![!b'7']);
        message.content_type = ContentType::new(content_type).unwrap();
        if let Some(subject) = subject {
            mark_sealed(&mut message.headers, subject, &ContentType::json()).unwrap();
        }
        message
    }

    #[tokio::test]
    async fn a_message_opens_with_the_payload_and_type_that_were_sealed() {
        let sealed = message(Some("s-7"), SEALED_CONTENT_TYPE);
        let Opened::Message(opened) = open_message(&Inverted, &sealed).await.unwrap() else {
            panic!("it is sealed, and its key exists");
        };
        assert_eq!((&opened.payload[..], opened.content_type.as_str()), (&b"7"[..], "application/json"));
        assert_eq!((opened.id, &opened.headers), (sealed.id, &sealed.headers));
    }

    #[tokio::test]
    async fn a_message_without_a_key_is_erased_and_a_plain_one_is_left_alone() {
        let erased = open_message(&Inverted, &message(Some("gone"), SEALED_CONTENT_TYPE)).await.unwrap();
        assert_eq!(erased, Opened::Erased);
        let plain = open_message(&Inverted, &message(Some("gone"), "application/json")).await.unwrap();
        assert_eq!(plain, Opened::Plain, "the content type decides");
    }

    #[tokio::test]
    async fn a_sealed_message_without_its_subject_is_refused() {
        let error = open_message(&Inverted, &message(None, SEALED_CONTENT_TYPE)).await.unwrap_err();
        assert!(matches!(&error, SealingError::Refused(cause) if cause.to_string().contains("sealed-for")));
    }
}
