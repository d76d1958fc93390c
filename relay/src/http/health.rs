//! The readiness of the process: every pipeline leads or stands by, and none has waited too long
//! for its database or for the marks of its transactions.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use message::{Fault, error_text};
use outbox_log::RelayName;
use tokio::sync::watch;
use tokio::time::Instant;

use engine::{Role, Status};

/// The health of all pipelines of the process.
#[derive(Clone)]
pub(crate) struct Health {
    unready_after: Duration,
    pipelines: Arc<Mutex<Option<Vec<Watched>>>>,
    is_page_missing: Arc<AtomicBool>,
}

struct Watched {
    name: RelayName,
    role: Role,
    /// Consecutive faults of this program.
    faults: u32,
    /// The time at which it began to wait for the lead. It ends when it has led for as long as it
    /// may wait: a database may grant a lease and then store nothing, again and again.
    waiting_since: Option<Instant>,
    leading_since: Option<Instant>,
}

impl Watched {
    fn change(&mut self, Status { role, faults }: Status, unready_after: Duration) {
        let now = Instant::now();
        let has_led = self.leading_since.is_some_and(|since| now.duration_since(since) >= unready_after);
        match role {
            Role::Leading { .. } => _ = self.leading_since.get_or_insert(now),
            Role::Waiting { .. } => {
                self.leading_since = None;
                self.waiting_since = Some(self.waiting_since.filter(|_| !has_led).unwrap_or(now));
            }
            _ => (self.leading_since, self.waiting_since) = (None, None),
        }
        (self.role, self.faults) = (role, faults);
    }

    /// Returns the state in a word, and whether it is ready. Shows only the remedy of a reason: it
    /// names no server, user or file, because readers may not be allowed to know them.
    fn state(&self, unready_after: Duration) -> (String, bool) {
        let told = |state: &str, is_ready: bool| (state.to_owned(), is_ready);
        match &self.role {
            // Between two faults it leads briefly.
            Role::Leading { .. } | Role::Standby { .. } | Role::Starting | Role::Waiting { .. }
                if self.faults > 1 =>
            {
                told("repeatedly ended by internal errors: see the log", false)
            }
            Role::Starting => told("starting", false),
            Role::Standby { .. } => told("standby", true),
            Role::Leading { .. } => told("leading", true),
            Role::Stopped => told("stopped", false),
            Role::Refused { remedy, .. } => {
                (format!("refused and not retried: {}", shown(remedy.as_deref())), false)
            }
            Role::Waiting { fault, reason, remedy } => {
                let is_short = self.waiting_since.is_none_or(|since| since.elapsed() < unready_after);
                match (fault, refused_write(reason)) {
                    (Fault::Operator, _) => {
                        (format!("an operator must act: {}", shown(remedy.as_deref())), is_short)
                    }
                    (_, Some(what)) => {
                        (format!("the database answers, and this process could not {what}: {SEE}"), is_short)
                    }
                    (_, None) => told("waiting for the database or the broker", is_short),
                }
            }
        }
    }
}

/// Where the reason is, which names servers, users and files.
const SEE: &str = "the log and `relay check` show the reason";

/// The writes without which a relay does not lead, as its errors name them.
const WRITES: [&str; 3] = ["take the lease", "renew the lease", "write the checkpoint"];

/// Returns the write that a database has refused, according to the reason of a wait: it can be
/// read, and has no room, for example. A database that is away has refused nothing.
fn refused_write(reason: &str) -> Option<&'static str> {
    let refused = |what: &&str| reason.contains(&format!("could not {what}: error returned from database"));
    WRITES.into_iter().find(refused)
}

/// Maximum size of a shown remedy in bytes.
const REMEDY_BYTES_MAX: usize = 300;

/// Returns the remedy in one line.
fn shown(remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => error_text::storable(remedy, REMEDY_BYTES_MAX).replace(char::is_control, " "),
        None => SEE.to_owned(),
    }
}

impl Health {
    /// Creates the health of a process that is not ready until [`watch`](Health::watch) is called.
    /// A pipeline may wait for its database, or for the marks of its transactions, for
    /// `unready_after`.
    #[must_use]
    pub(crate) fn new(unready_after: Duration) -> Self {
        Self { unready_after, pipelines: Arc::default(), is_page_missing: Arc::default() }
    }

    /// Sets whether the configured page cannot be served for now. This is reported, but does not
    /// make the process unready: messages are published without it.
    #[cfg(any(test, feature = "page"))]
    pub(crate) fn set_page_missing(&self, is_missing: bool) {
        self.is_page_missing.store(is_missing, Ordering::Relaxed);
    }

    /// Follows the pipelines in separate tasks, until they are dropped.
    pub(crate) fn watch(&self, pipelines: Vec<(RelayName, watch::Receiver<Status>)>) {
        let watched = pipelines.iter().map(|(name, status)| Watched {
            name: name.clone(),
            role: status.borrow().role.clone(),
            faults: 0,
            waiting_since: None,
            leading_since: None,
        });
        *self.pipelines.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched.collect());
        for (index, (_, mut status)) in pipelines.into_iter().enumerate() {
            let health = self.clone();
            tokio::spawn(async move {
                loop {
                    let now = status.borrow_and_update().clone();
                    health.change(index, now);
                    if status.changed().await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    fn change(&self, index: usize, status: Status) {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = pipelines.as_mut().and_then(|all| all.get_mut(index)) {
            watched.change(status, self.unready_after);
        }
    }

    /// Returns whether the process is ready, and a line for each pipeline.
    #[must_use]
    pub(crate) fn ready(&self) -> (bool, String) {
        let pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pipelines) = &*pipelines else { return (false, String::from("starting\n")) };
        let mut text = String::new();
        let mut is_ready = true;
        for watched in pipelines {
            let (state, is_fine) = watched.state(self.unready_after);
            is_ready &= is_fine;
            let _ = writeln!(text, "{}: {state}", watched.name.as_str());
        }
        if self.is_page_missing.load(Ordering::Relaxed) {
            text.push_str("(page): not served: see the log\n");
        }
        (is_ready, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(role: Role, wait: Duration) -> (bool, String) {
        let (sender, receiver) = watch::channel(Status::of(Role::Starting));
        let health = Health::new(Duration::from_secs(30));
        assert!(!health.ready().0, "ready before there are pipelines");
        health.watch(vec![(RelayName::new("orders").unwrap(), receiver)]);
        sender.send_replace(Status::of(role));
        tokio::time::sleep(wait).await;
        health.ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_and_a_standby_are_ready_and_one_that_starts_is_not() {
        let short = Duration::from_millis(1);
        assert_eq!(after(Role::Leading { epoch: 1 }, short).await, (true, String::from("orders: leading\n")));
        assert!(after(Role::Standby { holder: String::from("another") }, short).await.0);
        assert!(!after(Role::Starting, short).await.0);
        assert!(!after(Role::Stopped, short).await.0);
        let (is_ready, text) =
            after(Role::Refused { reason: String::from("too new"), remedy: None }, short).await;
        assert!(!is_ready && text.contains("not retried") && !text.contains("too new"), "{text}");
    }

    #[tokio::test]
    async fn a_page_that_cannot_be_served_is_told_and_does_not_make_unready() {
        let (_sender, receiver) = watch::channel(Status::of(Role::Leading { epoch: 1 }));
        let health = Health::new(Duration::from_secs(30));
        health.watch(vec![(RelayName::new("orders").unwrap(), receiver)]);
        health.set_page_missing(true);
        let (is_ready, text) = health.ready();
        assert!(is_ready && text.contains("(page): not served"), "{text}");
        health.set_page_missing(false);
        assert_eq!(health.ready(), (true, String::from("orders: leading\n")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipeline_that_ends_again_and_again_is_not_ready_in_between() {
        let (sender, receiver) = watch::channel(Status::of(Role::Starting));
        let health = Health::new(Duration::from_secs(30));
        health.watch(vec![(RelayName::new("orders").unwrap(), receiver)]);
        for (faults, is_ready) in [(1, true), (2, false), (0, true)] {
            sender.send_replace(Status { role: Role::Leading { epoch: 1 }, faults });
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(health.ready().0, is_ready, "after {faults} faults: {}", health.ready().1);
        }
    }

    /// Goal: a database that grants the lease and stores nothing makes unready, one that was away
    /// and has stored for long does not. Oracle: the readiness while it waits, after it has led.
    #[tokio::test(start_paused = true)]
    async fn a_pipeline_that_leads_only_briefly_is_not_ready_in_between() {
        for (leads, is_ready) in [(2, false), (31, true)] {
            let (sender, receiver) = watch::channel(Status::of(Role::Starting));
            let health = Health::new(Duration::from_secs(30));
            health.watch(vec![(RelayName::new("orders").unwrap(), receiver)]);
            for _ in 0..9 {
                let reason = String::from("no space left on device");
                let waiting = Role::Waiting { fault: Fault::Broker, reason, remedy: None };
                for (role, lasts) in [(waiting, 5), (Role::Leading { epoch: 1 }, leads)] {
                    sender.send_replace(Status::of(role));
                    tokio::time::sleep(Duration::from_secs(lasts)).await;
                }
            }
            assert!(health.ready().0, "it leads");
            let waiting = Role::Waiting { fault: Fault::Broker, reason: String::new(), remedy: None };
            sender.send_replace(Status::of(waiting));
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(health.ready().0, is_ready, "{leads} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_is_away_for_too_long_makes_unready() {
        let waiting = |fault, reason: &str, remedy: Option<&str>| Role::Waiting {
            fault,
            reason: reason.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let role = waiting(Fault::Broker, "away", None);
        assert!(after(role.clone(), Duration::from_secs(29)).await.0);
        let (is_ready, text) = after(role, Duration::from_secs(31)).await;
        assert!(!is_ready && !text.contains("away"), "{text}");
        // It is not away: its error is no secret of the server, and where to look is known.
        let refused = "the database is not available: it could not take the lease: error returned from database: \
                       could not extend file \"base/1/2\": No space left on device";
        let (is_ready, text) = after(waiting(Fault::Broker, refused, None), Duration::from_secs(31)).await;
        assert!(!is_ready && text.contains("this process could not take the lease: the log"), "{text}");
        assert!(!text.contains("base/1/2"), "{text}");
        let role = waiting(Fault::Operator, "no marks; index 7", None);
        let (is_ready, text) = after(role, Duration::from_secs(31)).await;
        assert!(!is_ready && text.contains("operator must act: the log and `relay check`"), "{text}");
        let remedy = "write the right\npassword into the file";
        let role = waiting(Fault::Operator, &format!("db.example refused; {remedy}"), Some(remedy));
        let (_, text) = after(role, Duration::from_secs(31)).await;
        assert_eq!(text, "orders: an operator must act: write the right password into the file\n");
    }
}
