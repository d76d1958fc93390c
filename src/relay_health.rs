//! The health of a relay inside a service.

use engine::{Role, Status};
use tokio::sync::watch;

/// The health of a [`Relay`](crate::Relay), made by [`Relay::health`](crate::Relay::health). Cheap
/// to clone; it remains valid while the relay runs, and after that.
///
/// ```no_run
/// # fn example(relay: outbox_toolkit::Relay) {
/// use outbox_toolkit::{RelayHealth, RelayRole};
///
/// #[derive(Clone)]
/// struct Service {
///     relay: RelayHealth,
/// }
///
/// fn is_healthy(service: &Service) -> bool {
///     !matches!(service.relay.status().role, RelayRole::Waiting { .. } | RelayRole::Refused { .. })
/// }
/// # let service = Service { relay: relay.health() };
/// # assert!(is_healthy(&service) && !service.relay.is_leading());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RelayHealth(watch::Receiver<Status>);

impl RelayHealth {
    pub(crate) fn new(status: watch::Receiver<Status>) -> Self {
        Self(status)
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.borrow().clone()
    }

    /// Returns whether this process publishes. Of all processes that run the relay, at most one
    /// does; the others are equally healthy.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self.0.borrow().role, Role::Leading { .. })
    }

    /// Waits until the status has changed since the last call of this method, and returns the new
    /// one; `None` once the relay has ended. Cancel-safe.
    pub async fn changed(&mut self) -> Option<Status> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}
