//! The identity of a request, and its parts.

use std::fmt;

use message::{Fingerprint, InvalidText, TEXT_BYTES_MAX, Tenant};
use uuid::Uuid;

message::name! {
    /// The requested operation: `POST /orders`, `charge`. It is part of the key's identity, so one
    /// key used for two operations identifies two requests. 1 to 255 bytes, no control characters.
    Operation, "operation", TEXT_BYTES_MAX, "control characters are not allowed", |c| !c.is_control()
}

message::name! {
    /// The key that a caller made for one request and sends again with each retry. 1 to 255 bytes,
    /// no control characters.
    IdempotencyKey, "idempotency key", TEXT_BYTES_MAX, "control characters are not allowed", |c| !c.is_control()
}

/// The identity of a request: its tenant, its operation, and the caller's key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId {
    tenant: Tenant,
    operation: Operation,
    key: IdempotencyKey,
}

impl KeyId {
    /// Makes the identity from its parts.
    ///
    /// # Errors
    /// [`InvalidText::Empty`] when the tenant is empty. Keys without a tenant would be shared by
    /// all callers, and one caller would get another's answer. Use a name even when there is only
    /// one tenant.
    pub fn new(tenant: Tenant, operation: Operation, key: IdempotencyKey) -> Result<Self, InvalidText> {
        if tenant.as_str().is_empty() {
            return Err(InvalidText::Empty {
                what: "tenant of an idempotency key",
                bytes_max: TEXT_BYTES_MAX,
            });
        }
        Ok(Self { tenant, operation, key })
    }

    /// Does the same as [`new`](Self::new), from three texts.
    ///
    /// # Errors
    /// [`InvalidText`] for the first invalid text.
    pub fn of_texts(tenant: &str, operation: &str, key: &str) -> Result<Self, InvalidText> {
        Self::new(Tenant::new(tenant)?, Operation::new(operation)?, IdempotencyKey::new(key)?)
    }

    /// Returns the tenant or account.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the requested operation.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Returns the caller's key. Another tenant may send the same one.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Returns the key to pass to a service that has the effect and honours keys. It is the same at
    /// every attempt, and different for every other tenant and operation, which that service cannot
    /// distinguish by the caller's key alone.
    #[must_use]
    pub fn downstream(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.hash().as_bytes()[..16]);
        // Version 8: a custom layout.
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    /// Returns a hash that is unique to this identity.
    pub(crate) fn hash(&self) -> Fingerprint {
        Fingerprint::of_parts(self.tenant.as_str(), self.operation.as_str(), self.key.as_str().as_bytes())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({})", self.key, self.tenant, self.operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_nobody_are_refused() {
        let (operation, key) = (Operation::new("charge").unwrap(), IdempotencyKey::new("k").unwrap());
        assert!(KeyId::new(Tenant::none(), operation.clone(), key.clone()).is_err());
        assert!(KeyId::new(Tenant::new("t").unwrap(), operation, key).is_ok());
    }

    #[test]
    fn every_tenant_operation_and_key_has_its_own_key_downstream() {
        let of = |tenant, operation, key| KeyId::of_texts(tenant, operation, key).unwrap().downstream();
        let mut all = std::collections::BTreeSet::new();
        for (tenant, operation, key) in
            [("a", "b", "c"), ("ab", "b", "c"), ("a", "bb", "c"), ("a", "b", "bc"), ("ab", "c", "b")]
        {
            assert!(all.insert(of(tenant, operation, key)), "{tenant} {operation} {key}");
        }
        // Part of the contract: a service of another version passes on the same key.
        assert_eq!(of("t1", "POST /charges", "k").to_string(), "4c9c2b63-4940-8764-8fa1-c7b33694f2a9");
    }

    #[test]
    fn bad_keys_are_refused_with_their_limit() {
        assert!(IdempotencyKey::new("").is_err() && IdempotencyKey::new("a\nb").is_err());
        assert!(IdempotencyKey::new("k".repeat(255)).is_ok());
        let told = IdempotencyKey::new("k".repeat(256)).unwrap_err().to_string();
        assert!(told.contains("256 bytes; the limit is 255"), "{told}");
    }
}
