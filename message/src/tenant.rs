//! Tenants of messages and requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::{InvalidText, TEXT_BYTES_MAX, check_optional};

/// The tenant or account that a message or a request is for. It is part of the key, so one tenant's
/// id never hides another tenant's message. At most 255 bytes, no control characters; empty without
/// tenants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Validates a text as a tenant.
    ///
    /// # Errors
    /// [`InvalidText`] when it is too long or contains a control character.
    pub fn new(value: impl Into<Arc<str>>) -> Result<Self, InvalidText> {
        let value = value.into();
        check_optional("tenant", &value, TEXT_BYTES_MAX, "control characters are not allowed", |c| {
            !c.is_control()
        })?;
        Ok(Self(value))
    }

    /// Returns the empty tenant, for messages without one.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::from(""))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Tenant {
    type Err = InvalidText;
    fn from_str(value: &str) -> Result<Self, InvalidText> {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_may_be_empty_and_holds_no_control_character() {
        assert!(matches!(Tenant::new("a\0b"), Err(InvalidText::Character { at: 1, .. })));
        assert_eq!(Tenant::new("").unwrap(), Tenant::none());
    }
}
