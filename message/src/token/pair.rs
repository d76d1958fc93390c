//! An identity and its time.

use std::fmt;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::id::{InvalidId, MessageId};

/// An identity and the time at which it was generated. That time decides whether the token is
/// accepted. It never changes, so every later reader can determine whether the token's record may
/// be gone.
///
/// A [`MessageId`] carries both in one UUID, and becomes a token without loss. Any other pair, such
/// as the random UUID of a foreign event with that event's own time, becomes a message id that is
/// derived from both:
///
/// ```
/// # fn main() -> Result<(), message::InvalidId> {
/// use message::MessageId;
/// use message::token::Token;
/// let id = MessageId::new();
/// assert_eq!(MessageId::try_from(Token::from(id))?, id);
///
/// let generated_at = time::macros::datetime!(2026-03-01 12:00 UTC);
/// let foreign = Token { generated_at, id: uuid::Uuid::from_u128(7) };
/// let mapped = MessageId::try_from(foreign)?;
/// assert_eq!(mapped.generated_at(), generated_at);
/// assert_eq!(MessageId::try_from(foreign)?, mapped);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The time at which it was generated; to the millisecond for a message id.
    pub generated_at: OffsetDateTime,
    /// The identity.
    pub id: Uuid,
}

impl From<MessageId> for Token {
    fn from(id: MessageId) -> Self {
        Self { generated_at: id.generated_at(), id: id.as_uuid() }
    }
}

impl TryFrom<Token> for MessageId {
    type Error = InvalidId;

    /// Returns the id itself where it carries the token's time, otherwise an id derived from time
    /// and id.
    fn try_from(token: Token) -> Result<Self, InvalidId> {
        match Self::try_from(token.id) {
            Ok(id) if id.generated_at() == token.generated_at => Ok(id),
            _ => Self::derived(token.generated_at, [token.id.as_bytes()]),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.id, self.generated_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn a_message_id_is_a_token_without_loss() {
        let early = MessageId::derived(datetime!(1970-01-01 0:00 UTC), ["x"]).unwrap();
        for id in [MessageId::new(), early] {
            assert_eq!(MessageId::try_from(Token::from(id)).unwrap(), id);
        }
    }

    #[test]
    fn a_foreign_pair_has_one_message_id_of_its_time() {
        let at = datetime!(2026-03-01 12:00:00.5 UTC);
        let of = |id: u128, at| MessageId::try_from(Token { generated_at: at, id: Uuid::from_u128(id) });
        assert_eq!(of(7, at).unwrap(), of(7, at).unwrap());
        assert_eq!(of(7, at).unwrap().generated_at(), at);
        assert_ne!(of(7, at).unwrap(), of(8, at).unwrap());
        // A version 7 id with another time than its token's is a foreign id.
        let id = MessageId::new();
        let moved = MessageId::try_from(Token { generated_at: at, id: id.as_uuid() }).unwrap();
        assert!(moved != id && moved.generated_at() == at);
        assert!(of(7, datetime!(1969-01-01 0:00 UTC)).is_err());
    }
}
