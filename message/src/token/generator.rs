//! Generators of message ids.

use std::error::Error;
use std::fmt;

use crate::id::MessageId;

/// A generator of message ids. Pass one to `outbox::OutboxBuilder::ids`.
pub trait IdGenerator: Send + Sync + fmt::Debug + 'static {
    /// Returns the next id. Does not block.
    ///
    /// # Errors
    /// [`MintError`] if it cannot generate an id now that is certain to be unique.
    fn mint(&self) -> Result<MessageId, MintError>;
}

/// No id can be made at present. The infrastructure's fault; trying again later may help.
#[derive(Debug, thiserror::Error)]
#[error("cannot generate a message id now")]
pub struct MintError(#[source] Box<dyn Error + Send + Sync>);

impl MintError {
    /// Makes an error with this reason.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}
