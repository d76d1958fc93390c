//! Names of sagas and of their steps.

use std::fmt;
use std::str::FromStr;

use message::{InvalidText, check_name};

/// Maximum bytes of the type of a saga, and of the name of a step.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum bytes of the id of a saga. It limits a key to 255 bytes, which headers and idempotency
/// keys of other services permit.
pub const ID_BYTES_MAX: usize = 125;

/// Checks a name.
pub(crate) fn check(what: &'static str, value: &str, bytes_max: usize) -> Result<(), InvalidText> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    check_name(what, value, bytes_max, "allowed are ASCII letters, digits and - _ . : @", known)
}

/// The name of one saga: its type and its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SagaId {
    saga_type: String,
    id: String,
}

impl SagaId {
    /// Creates the name of a saga. Checks both parts.
    ///
    /// # Errors
    /// [`InvalidText`]: a type of more than [`NAME_BYTES_MAX`] bytes, an id of more than
    /// [`ID_BYTES_MAX`] bytes, an empty one, or a character outside the set.
    pub fn new(saga_type: impl Into<String>, id: impl Into<String>) -> Result<Self, InvalidText> {
        let (saga_type, id) = (saga_type.into(), id.into());
        check("the type of a saga", &saga_type, NAME_BYTES_MAX)?;
        check("the id of a saga", &id, ID_BYTES_MAX)?;
        Ok(Self { saga_type, id })
    }

    /// Creates a name from the database. It was checked when it was stored.
    pub(crate) fn stored(saga_type: String, id: String) -> Self {
        Self { saga_type, id }
    }

    /// Returns the type.
    #[must_use]
    pub fn saga_type(&self) -> &str {
        &self.saga_type
    }

    /// Returns the id within the type.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the key of a step, which is the same at every attempt. Other services receive it.
    pub(crate) fn key(&self, step: &str) -> StepKey {
        StepKey { saga: self.clone(), step: step.to_owned() }
    }
}

impl fmt::Display for SagaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.saga_type, self.id)
    }
}

/// The key of a step. Its text is `type/id/step`; other services get it as an idempotency key, and
/// a reply carries it back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepKey {
    /// The saga.
    pub saga: SagaId,
    /// The name of the step.
    pub step: String,
}

/// A text that is not the key of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the key of a saga's step; a key is `type/id/step`, as in the request")]
pub struct InvalidKey(String);

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.saga, self.step)
    }
}

impl From<&StepKey> for String {
    /// Returns its text, for a header.
    fn from(key: &StepKey) -> Self {
        key.to_string()
    }
}

impl From<StepKey> for String {
    fn from(key: StepKey) -> Self {
        key.to_string()
    }
}

impl FromStr for StepKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let invalid = || InvalidKey(text.chars().take(NAME_BYTES_MAX).collect());
        let mut parts = text.split('/');
        let (Some(saga_type), Some(id), Some(step), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let saga = SagaId::new(saga_type, id).map_err(|_| invalid())?;
        check("the name of a step", step, NAME_BYTES_MAX).map_err(|_| invalid())?;
        Ok(Self { saga, step: step.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let saga = SagaId::new("checkout", "order-42:eu@1").unwrap();
        let key: StepKey = saga.key("ship").to_string().parse().unwrap();
        assert_eq!(key, StepKey { saga, step: String::from("ship") });
        for wrong in ["", "a", "a/b", "a/b/c/d", "a//c", "a/b/", "ä/b/c", "a/b c/d"] {
            assert!(wrong.parse::<StepKey>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_fits_into_255_bytes_and_what_does_not_is_refused() {
        let (name, id) = ("n".repeat(NAME_BYTES_MAX), "i".repeat(ID_BYTES_MAX));
        let saga = SagaId::new(name.clone(), id.clone()).unwrap();
        assert_eq!(saga.key(&name).to_string().len(), 255);
        let told = SagaId::new("a", id + "i").unwrap_err().to_string();
        assert!(told.contains("126 bytes") && told.contains("the limit is 125"), "{told}");
        assert!(SagaId::new("", "1").is_err() && SagaId::new("a/b", "1").is_err());
    }
}
