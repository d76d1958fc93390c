//! Generators of message ids.

use std::error::Error;
use std::fmt;

use crate::id::MessageId;

/// Makes message ids, one after the other. Pass one to `outbox::OutboxBuilder::ids`.
pub trait IdGenerator: Send + Sync + fmt::Debug + 'static {
    /// The next id. It does not block.
    ///
    /// # Errors
    /// [`MintError`] when no id can be made at present that is certain to be unique.
    fn mint(&self) -> Result<MessageId, MintError>;
}

/// The ids of this process: [`MessageId::new`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessIds;

impl IdGenerator for ProcessIds {
    fn mint(&self) -> Result<MessageId, MintError> {
        Ok(MessageId::new())
    }
}

/// No id can be made at present. The infrastructure's fault; trying again later may help.
#[derive(Debug, thiserror::Error)]
#[error("no message id can be made at present")]
pub struct MintError(#[source] Box<dyn Error + Send + Sync>);

impl MintError {
    /// For this reason.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}
