//! How to stop a consumer.

use tokio_util::sync::CancellationToken;

/// Two signals: stop gracefully, and stop now. Connect the first to SIGTERM, the second to a second SIGTERM or to the
/// end of the grace period.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Receive nothing more; finish, settle and close.
    pub graceful: CancellationToken,
    /// Stop at once. Transactions in hand end by themselves, nothing more is settled, and what was unsettled is
    /// delivered again.
    pub abort: CancellationToken,
}

impl Shutdown {
    /// Neither signal given yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
