//! A database that opens only one session for a relay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::PublishError;
use message::testing::{BrokerScript, ScriptedBroker};
use outbox_log::testing::{LogScript, ScriptedLog};
use outbox_log::{Acquired, LogError, OtherHolder, RelayName};
use tokio_util::sync::CancellationToken;

use super::{Pipeline, Role};
use crate::options::EngineOptions;

/// How the second session fails.
#[derive(Debug, Clone, Copy)]
enum Second {
    Late,
    Refused,
}

struct OneSession {
    second: Second,
    /// Who leads while there is another process.
    other: Mutex<Option<OtherHolder>>,
    /// Requests for the lease.
    requests: AtomicUsize,
    /// Attempts to open the second session.
    attempts: AtomicUsize,
    /// Whether the first session answers.
    answers: bool,
    /// The cause that the database names.
    cause: Option<&'static str>,
}

impl OneSession {
    fn new(second: Second) -> Self {
        let (requests, attempts) = (AtomicUsize::default(), AtomicUsize::default());
        Self { second, other: Mutex::default(), requests, attempts, answers: true, cause: None }
    }
}

#[async_trait]
impl LogScript for OneSession {
    async fn reader(&self) -> Result<(), LogError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match self.second {
            Second::Late => {
                let waited = Duration::from_secs(10);
                tokio::time::sleep(waited).await;
                Err(LogError::Timeout { waited })
            }
            Second::Refused => {
                let reason = String::from("too many connections for role \"relay\"");
                Err(LogError::Unavailable { reason, source: None })
            }
        }
    }

    fn cause_of(&self, error: &LogError) -> Option<String> {
        let is_late = matches!(error, LogError::Timeout { .. });
        self.cause.filter(|_| is_late).map(String::from)
    }

    async fn other_holder(&self) -> Result<Option<OtherHolder>, LogError> {
        if !self.answers && self.attempts.load(Ordering::Relaxed) > 0 {
            return Err(LogError::Unavailable { reason: String::from("connection reset"), source: None });
        }
        Ok(self.other.lock().unwrap().clone())
    }

    async fn acquire(&self, _: Duration) -> Result<Acquired, LogError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Err(LogError::Unavailable { reason: String::from("requested too early"), source: None })
    }
}

/// A broker that no relay reaches.
struct Unreached;

impl BrokerScript for Unreached {
    fn connect(&self) -> Result<(), PublishError> {
        panic!("nothing was granted")
    }
}

/// Runs a relay for a minute and returns its last role.
async fn role_after_a_minute(database: &Arc<OneSession>) -> Role {
    let store = Arc::new(ScriptedLog(Arc::clone(database)));
    let broker = Arc::new(ScriptedBroker(Arc::new(Unreached)));
    let name = RelayName::new("orders").unwrap();
    let pipeline = Pipeline::new(name, store, broker, EngineOptions::default());
    let (status, stop) = (pipeline.status(), CancellationToken::new());
    let running = tokio::spawn(pipeline.run(stop.clone()));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let role = status.borrow().role.clone();
    stop.cancel();
    running.await.unwrap();
    role
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_not_taken_without_a_session_for_reading() {
    let expected = [(Second::Late, "needs 2 sessions to lead"), (Second::Refused, "too many connections")];
    for (second, named) in expected {
        let database = Arc::new(OneSession::new(second));
        let role = role_after_a_minute(&database).await;
        assert_eq!(database.requests.load(Ordering::Relaxed), 0, "{second:?}");
        assert!(database.attempts.load(Ordering::Relaxed) > 3, "{second:?}");
        let Role::Waiting { reason, .. } = role else { panic!("{second:?}: {role:?}") };
        assert!(reason.contains(named), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_answers_nothing_lacks_no_sessions() {
    let database = Arc::new(OneSession { answers: false, ..OneSession::new(Second::Late) });
    let Role::Waiting { reason, .. } = role_after_a_minute(&database).await else { panic!("it waits") };
    assert!(reason.contains("connection reset") && !reason.contains("needs 2"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_cause_that_the_database_names_stands_in_the_role() {
    let cause = Some("outbox_server_run is locked by session 7");
    for answers in [true, false] {
        let database = Arc::new(OneSession { answers, cause, ..OneSession::new(Second::Late) });
        let Role::Waiting { reason, .. } = role_after_a_minute(&database).await else { panic!("it waits") };
        let is_named = reason.contains("locked by session 7") && !reason.contains("needs 2");
        // Without an answer of the first session, its error counts, which has no cause here.
        assert_eq!(is_named, answers, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_has_one_session() {
    let database = Arc::new(OneSession::new(Second::Refused));
    let (holder, expires_in) = (String::from("another"), Duration::from_secs(15));
    *database.other.lock().unwrap() = Some(OtherHolder { holder, expires_in });
    let role = role_after_a_minute(&database).await;
    assert!(matches!(role, Role::Standby { .. }), "{role:?}");
    assert_eq!(database.attempts.load(Ordering::Relaxed), 0);
}
