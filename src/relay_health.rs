//! The health of a relay inside a service.

use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{Role, Status};
use tokio::sync::watch;
use tokio::time::Instant;

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
pub struct RelayHealth {
    status: watch::Receiver<Status>,
    entered: Entered,
}

/// The last role of a relay that was noted, and since when the relay has had it: shared by every
/// health of one relay.
#[derive(Debug, Clone)]
pub(crate) struct Entered(Arc<Mutex<RoleSince>>);

/// A role without its details, of which a reason changes while the relay waits.
#[derive(Debug)]
struct RoleSince {
    role: Discriminant<Role>,
    at: Instant,
}

impl Entered {
    /// The role of a relay that has not started.
    pub(crate) fn starting() -> Self {
        Self(Arc::new(Mutex::new(RoleSince { role: discriminant(&Role::Starting), at: Instant::now() })))
    }

    /// Notes the role of a status. Returns since when the relay has had it. The status is borrowed
    /// meanwhile, so that nobody can note a later one before it.
    fn note(&self, status: &watch::Ref<'_, Status>) -> Instant {
        let role = discriminant(&status.role);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.role != role {
            *noted = RoleSince { role, at: Instant::now() };
        }
        noted.at
    }
}

impl RelayHealth {
    pub(crate) fn new(status: watch::Receiver<Status>, entered: Entered) -> Self {
        Self { status, entered }
    }

    /// Notes each role of the relay when it takes it, until the relay has ended.
    pub(crate) async fn follow(mut self) {
        loop {
            self.entered.note(&self.status.borrow_and_update());
            if self.status.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Returns how long the relay has had its role: for how long it has led, stood by or waited,
    /// although the holder or the reason has changed meanwhile. In a relay that was built and does
    /// not run, how long ago it was built.
    #[must_use]
    pub fn in_role_for(&self) -> Duration {
        self.entered.note(&self.status.borrow()).elapsed()
    }

    /// Returns whether the relay has not stopped, for a liveness probe. While it waits for its
    /// database or an operator, or is refused, a restart does not help: then it is alive, and not
    /// [healthy](Self::is_healthy).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.status.borrow().role != Role::Stopped
    }

    /// Returns whether the relay leads or stands by, and no bug ends it again and again. So it
    /// returns false before the first answer from the database, while the relay waits for the
    /// database or an operator, once it is refused, and after it has stopped. A broker that is away
    /// does not count, as in the program's `/readyz`. `/readyz` also tolerates a wait of 30 s, and
    /// your check may do so as well.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let status = self.status.borrow();
        status.faults <= 1 && matches!(status.role, Role::Leading { .. } | Role::Standby { .. })
    }

    /// Returns whether this process publishes. Of all processes that run the relay, at most one
    /// does; the others are equally healthy.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self.status.borrow().role, Role::Leading { .. })
    }

    /// Waits until the status has changed since the last call of this method, and returns the new
    /// one; `None` once the relay has ended. Cancel-safe.
    pub async fn changed(&mut self) -> Option<Status> {
        self.status.changed().await.ok()?;
        Some(self.status.borrow_and_update().clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use message::Fault;

    use super::*;

    /// Goal: a relay that publishes nothing any more is seen by the service's health check. Oracle:
    /// the table of roles.
    #[test]
    fn only_a_relay_that_leads_or_stands_by_is_healthy() {
        let (sender, receiver) = watch::channel(Status::of(Role::Starting));
        let health = RelayHealth::new(receiver, Entered::starting());
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

    fn waiting(reason: &str) -> Status {
        let reason = String::from(reason);
        Status::of(Role::Waiting { fault: Fault::Broker, reason, remedy: None })
    }

    /// Goal: probes say since when a relay waits, however its reason changes, and not since when
    /// they first asked. Oracle: the time that is noted, for other reasons, another role, and a
    /// role about which nothing has asked.
    #[tokio::test]
    async fn a_role_is_timed_from_its_beginning() {
        const MINUTE: Duration = Duration::from_secs(60);
        let (sender, receiver) = watch::channel(waiting("no answer"));
        let health = RelayHealth::new(receiver.clone(), Entered::starting());
        assert!(health.in_role_for() < MINUTE);
        let noted = || health.entered.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted().at -= MINUTE;
        sender.send_replace(waiting("no route to the host"));
        assert!(health.in_role_for() >= MINUTE, "it waits as before");
        sender.send_replace(Status::of(Role::Leading { epoch: 1 }));
        assert!(health.clone().in_role_for() < MINUTE);
        noted().at -= MINUTE;
        assert!(RelayHealth::new(receiver, health.entered.clone()).in_role_for() >= MINUTE);

        let following = tokio::spawn(health.clone().follow());
        sender.send_replace(Status::of(Role::Stopped));
        drop(sender);
        following.await.unwrap();
        assert_eq!(noted().role, discriminant(&Role::Stopped), "without a question");
    }
}
