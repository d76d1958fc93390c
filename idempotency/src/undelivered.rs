//! A claim on the way to its caller.

use tokio::runtime::Handle;

use crate::claim::Claim;
use crate::claimed::Claimed;
use crate::store::KeyStore;

/// The outcome of a claim that its caller has not received yet. If it is dropped instead, a granted
/// key is released, because no request runs with it.
pub(crate) struct Undelivered<DB: KeyStore> {
    claimed: Claimed<Claim<DB>>,
    unused: Unused<DB>,
}

impl<DB: KeyStore> Undelivered<DB> {
    /// Must be called in a tokio runtime.
    pub(crate) fn new(claimed: Claimed<Claim<DB>>) -> Self {
        let claim = if let Claimed::Acquired(claim) = &claimed { Some(claim.share()) } else { None };
        Self { claimed, unused: Unused { claim, runtime: Handle::current() } }
    }

    /// Returns the outcome to the caller that awaits it.
    pub(crate) fn deliver(self) -> Claimed<Claim<DB>> {
        let Self { claimed, mut unused } = self;
        unused.claim = None;
        claimed
    }
}

/// Releases a claim when it is dropped.
struct Unused<DB: KeyStore> {
    /// `None` when there is nothing to release.
    claim: Option<Claim<DB>>,
    /// A caller may drop it on a thread without a runtime.
    runtime: Handle,
}

impl<DB: KeyStore> Drop for Unused<DB> {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        self.runtime.spawn(async move {
            if let Err(error) = claim.release().await {
                tracing::debug!(%error, "an unused claim was not released; its lease will expire");
            }
        });
    }
}
