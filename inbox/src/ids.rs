//! Names of messages at a consumer.

use message::MessageId;
pub use message::{ConsumerName, DeadLetterId, Tenant};
use uuid::Uuid;

/// The name of a message at one consumer: its tenant and its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageName<'a> {
    /// The tenant.
    pub tenant: &'a Tenant,
    /// The message id.
    pub id: MessageId,
}

impl<'a> MessageName<'a> {
    /// Returns the key of its inbox row.
    pub(crate) fn key(self, consumer: &'a ConsumerName) -> Key<'a> {
        key(consumer, self.tenant, self.id)
    }
}

/// The identity of an inbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The message id.
    pub id: Uuid,
}

/// Returns the key of a message at a consumer.
pub(crate) fn key<'a>(consumer: &'a ConsumerName, tenant: &'a Tenant, id: MessageId) -> Key<'a> {
    Key { consumer: consumer.as_str(), tenant: tenant.as_str(), id: id.as_uuid() }
}
