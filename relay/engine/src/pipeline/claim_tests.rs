//! A database that opens only one session for a relay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::{Connector, MessageId, PublishError, Publisher, Receipts};
use outbox_log::{
    Acquired, CheckpointStore, Cursor, EntryId, ExceptionChange, Fenced, LogError, LogReader, LogStore,
    OtherHolder, RelayName,
};
use tokio_util::sync::CancellationToken;

use super::{Pipeline, Role};
use crate::options::EngineOptions;

/// How the second session fails.
#[derive(Debug, Clone, Copy)]
enum Second {
    Late,
    Refused,
}

#[derive(Clone)]
struct OneSession {
    second: Second,
    /// Who leads while there is another process.
    other: Arc<Mutex<Option<OtherHolder>>>,
    /// Requests for the lease.
    requests: Arc<AtomicUsize>,
    /// Attempts to open the second session.
    attempts: Arc<AtomicUsize>,
    /// Whether the first session answers.
    answers: bool,
    /// The cause that the database names.
    cause: Option<&'static str>,
}

impl OneSession {
    fn new(second: Second) -> Self {
        let (requests, attempts) = (Arc::default(), Arc::default());
        Self { second, other: Arc::default(), requests, attempts, answers: true, cause: None }
    }
}

#[async_trait]
impl LogStore for OneSession {
    fn origin(&self) -> &str {
        "one session"
    }

    async fn reader(&self, _: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
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

    async fn checkpoint_store(&self, _: &RelayName, _: &str) -> Result<Box<dyn CheckpointStore>, LogError> {
        Ok(Box::new(self.clone()))
    }

    async fn cause_of(&self, error: &LogError) -> Option<String> {
        let is_late = matches!(error, LogError::Timeout { .. });
        self.cause.filter(|_| is_late).map(String::from)
    }
}

#[async_trait]
impl CheckpointStore for OneSession {
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        if !self.answers && self.attempts.load(Ordering::Relaxed) > 0 {
            return Err(LogError::Unavailable { reason: String::from("connection reset"), source: None });
        }
        Ok(self.other.lock().unwrap().clone())
    }

    async fn acquire(&mut self, _: Duration) -> Result<Acquired, LogError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Err(LogError::Unavailable { reason: String::from("requested too early"), source: None })
    }

    async fn renew(&mut self, _: i64, _: Duration) -> Result<Fenced, LogError> {
        unreachable!("nothing was granted")
    }

    async fn checkpoint(&mut self, _: i64, _: &Cursor, _: &[ExceptionChange]) -> Result<Fenced, LogError> {
        unreachable!("nothing was granted")
    }

    async fn doubt(
        &mut self,
        _: &Cursor,
        _: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        unreachable!("nothing was granted")
    }

    async fn release(&mut self, _: i64) -> Result<Fenced, LogError> {
        unreachable!("nothing was granted")
    }
}

/// A broker that no relay reaches.
struct Unused;

#[async_trait]
impl Connector for Unused {
    fn destination(&self) -> &str {
        "unused"
    }

    async fn connect(&self, _: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        unreachable!("nothing was granted")
    }
}

/// Runs a relay for a minute and returns its last role.
async fn role_after_a_minute(database: &OneSession) -> Role {
    let connector: Arc<dyn Connector> = Arc::new(Unused);
    let store = Arc::new(database.clone());
    let pipeline =
        Pipeline::new(RelayName::new("orders").unwrap(), store, connector, EngineOptions::default());
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
        let database = OneSession::new(second);
        let role = role_after_a_minute(&database).await;
        assert_eq!(database.requests.load(Ordering::Relaxed), 0, "{second:?}");
        assert!(database.attempts.load(Ordering::Relaxed) > 3, "{second:?}");
        let Role::Waiting { reason, .. } = role else { panic!("{second:?}: {role:?}") };
        assert!(reason.contains(named), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_answers_nothing_lacks_no_sessions() {
    let database = OneSession { answers: false, ..OneSession::new(Second::Late) };
    let Role::Waiting { reason, .. } = role_after_a_minute(&database).await else { panic!("it waits") };
    assert!(reason.contains("connection reset") && !reason.contains("needs 2"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_cause_that_the_database_names_stands_in_the_role() {
    let cause = Some("outbox_server_run is locked by session 7");
    for answers in [true, false] {
        let database = OneSession { answers, cause, ..OneSession::new(Second::Late) };
        let Role::Waiting { reason, .. } = role_after_a_minute(&database).await else { panic!("it waits") };
        let is_named = reason.contains("locked by session 7") && !reason.contains("needs 2");
        // Without an answer of the first session, its error counts, which has no cause here.
        assert_eq!(is_named, answers, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_has_one_session() {
    let database = OneSession::new(Second::Refused);
    let (holder, expires_in) = (String::from("another"), Duration::from_secs(15));
    *database.other.lock().unwrap() = Some(OtherHolder { holder, expires_in });
    let role = role_after_a_minute(&database).await;
    assert!(matches!(role, Role::Standby { .. }), "{role:?}");
    assert_eq!(database.attempts.load(Ordering::Relaxed), 0);
}
