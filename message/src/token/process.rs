//! The generator of this process.

use std::sync::LazyLock;

use super::clock::SystemClock;
use super::generator::{IdGenerator, MintError};
use super::monotonic::Monotonic;
use crate::id::MessageId;

/// The generator of this process.
static PROCESS: LazyLock<Monotonic> = LazyLock::new(|| Monotonic::new(SystemClock::new()));

impl MessageId {
    /// Returns a new id with the current time. Ids generated in one process ascend strictly, even
    /// if the clock stops or steps back: see [`Monotonic`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every id is different; a default would mislead")]
    pub fn new() -> Self {
        PROCESS.next()
    }
}

/// The generator of this process: [`MessageId::new`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessIds;

impl IdGenerator for ProcessIds {
    fn mint(&self) -> Result<MessageId, MintError> {
        Ok(MessageId::new())
    }
}
