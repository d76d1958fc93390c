//! The health of a relay inside a service.

use engine::{Role, Status};
use tokio::sync::watch;

/// The health of a [`Relay`](crate::Relay), made by [`Relay::health`](crate::Relay::health). Cheap
/// to clone; it remains valid while the relay runs, and after that.
///
/// ```no_run
/// # fn example(relay: outbox_toolkit::Relay) {
/// use outbox_toolkit::RelayHealth;
///
/// #[derive(Clone)]
/// struct Service {
///     relay: RelayHealth,
/// }
///
/// fn is_healthy(service: &Service) -> bool {
///     service.relay.is_healthy()
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

    /// Returns whether the relay has not stopped, for a liveness probe. While it waits for its
    /// database or an operator, or is refused, a restart does not help: then it is alive, and not
    /// [healthy](Self::is_healthy).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.borrow().role != Role::Stopped
    }

    /// Returns whether the relay leads or stands by, and no bug ends it again and again. So it
    /// returns false before the first answer from the database, while the relay waits for the
    /// database or an operator, once it is refused, and after it has stopped. A broker that is away
    /// does not count, as in the program's `/readyz`. `/readyz` also tolerates a wait of 30 s, and
    /// your check may do so as well.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let status = self.0.borrow();
        status.faults <= 1 && matches!(status.role, Role::Leading { .. } | Role::Standby { .. })
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

#[cfg(test)]
mod tests {
    use message::Fault;

    use super::*;

    /// Goal: a relay that publishes nothing any more is seen by the service's health check. Oracle:
    /// the table of roles.
    #[test]
    fn only_a_relay_that_leads_or_stands_by_is_healthy() {
        let (sender, receiver) = watch::channel(Status::of(Role::Starting));
        let health = RelayHealth::new(receiver);
        let waiting = Role::Waiting { fault: Fault::Broker, reason: String::new(), remedy: None };
        let refused = Role::Refused { reason: String::new(), remedy: None };
        let leading = Role::Leading { epoch: 1 };
        let standby = Role::Standby { holder: String::new() };
        for (role, is_healthy) in [
            (Role::Starting, false),
            (leading.clone(), true),
            (standby, true),
            (waiting, false),
            (refused, false),
            (Role::Stopped, false),
        ] {
            sender.send_replace(Status::of(role.clone()));
            assert_eq!(health.is_healthy(), is_healthy, "{role:?}");
            assert_eq!(health.is_alive(), role != Role::Stopped, "{role:?}");
        }
        for (faults, is_healthy) in [(1, true), (2, false)] {
            sender.send_replace(Status { role: leading.clone(), faults });
            assert_eq!(health.is_healthy(), is_healthy, "after {faults} faults");
        }
    }
}
