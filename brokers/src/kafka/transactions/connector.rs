//! Takes over from the previous session, connects, and commits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    CONNECT_MAX_DEFAULT, ClosedTransaction, PublishError, Receipts, TransactionMark, TransactionScope,
    Transactions,
};
use tokio::runtime::Handle;

use super::opening::{self, Opening, blocking};
use super::pace::Pace;
use super::session::{Session, lost};
use crate::kafka::config::Config;
use crate::kafka::suspects::Suspects;
use crate::settings::InvalidSetting;

/// Shorter transactions would be aborted by every pause of a broker.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The brokers' default of `transaction.max.timeout.ms`.
const TIMEOUT_MAX: Duration = Duration::from_secs(900);

/// Connects to a Kafka cluster and publishes in transactions.
///
/// [`Transactions::take_over`] must be called first. Sessions that are connected afterwards
/// continue from the mark that it found.
#[derive(Debug)]
pub struct TransactionalConnector {
    config: Config,
    destination: String,
    suspects: Arc<Suspects>,
    pace: Arc<Pace>,
    sessions: AtomicU64,
    is_superseded: AtomicBool,
    state: Mutex<State>,
    /// Held while a transaction is committed, so that no session is opened meanwhile: it would find
    /// a mark that this process does not yet know as its own.
    committing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    scope: Option<TransactionScope>,
    /// The last mark that this process knows.
    mark: Option<TransactionMark>,
    /// The session of the takeover, until it is connected.
    ready: Option<Session>,
    /// The session that was connected last.
    current: Option<Session>,
}

impl TransactionalConnector {
    /// Returns how long the brokers let a transaction stay open under a lease of this length.
    #[must_use]
    pub fn timeout(lease: Duration) -> Duration {
        lease.clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    /// Creates a connector for this cluster. Does not connect or open files yet: files are read on
    /// every connect.
    ///
    /// # Errors
    /// [`InvalidSetting`] as for [`Config::check`], except for files.
    pub fn new(config: Config) -> Result<Self, InvalidSetting> {
        config.check_settings()?;
        config.warn();
        let destination = config.destination();
        Ok(Self {
            config,
            destination,
            suspects: Arc::default(),
            pace: Arc::default(),
            sessions: AtomicU64::new(0),
            is_superseded: AtomicBool::new(false),
            state: Mutex::default(),
            committing: tokio::sync::Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session that has fenced off the previous one. Returns it with the last mark.
    async fn open(
        &self,
        scope: &TransactionScope,
    ) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let (config, suspects, scope) = (self.config.clone(), Arc::clone(&self.suspects), scope.clone());
        let (singles, pace, runtime) = (suspects.take(), Arc::clone(&self.pace), Handle::current());
        // If this future is dropped, a session that has not yet fenced off another no longer does
        // so.
        blocking(move |asker| Opening { asker, config, suspects, pace, singles, scope }.run(&runtime)).await
    }
}

#[async_trait]
impl message::Connector for TransactionalConnector {
    fn destination(&self) -> &str {
        &self.destination
    }

    fn connect_max(&self) -> Duration {
        opening::open_max(&self.config).max(CONNECT_MAX_DEFAULT)
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn message::Publisher>, PublishError> {
        let committing = self.committing.lock().await;
        let (scope, known, ready) = {
            let mut state = self.state();
            state.current = None;
            (state.scope.clone(), state.mark.clone(), state.ready.take())
        };
        let Some(scope) = scope else {
            return Err(PublishError::session_lost("these transactions have not been taken over"));
        };
        let session = match ready.filter(|session| session.end.get().is_none()) {
            Some(session) => session,
            None => {
                let (session, last) = self.open(&scope).await?;
                if last != known {
                    self.is_superseded.store(true, Ordering::Release);
                    let number = |mark: &Option<TransactionMark>| mark.as_ref().map_or(0, |mark| mark.number);
                    return Err(PublishError::session_lost(format!(
                        "kafka holds mark {} where this process has written {}: another process has taken over",
                        number(&last),
                        number(&known)
                    )));
                }
                session
            }
        };
        drop(committing);
        let publisher = session.publisher(receipts);
        self.sessions.fetch_add(1, Ordering::AcqRel);
        self.state().current = Some(session);
        Ok(Box::new(publisher))
    }
}

#[async_trait]
impl Transactions for TransactionalConnector {
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        {
            let mut state = self.state();
            (state.ready, state.current, state.scope) = (None, None, None);
        }
        let (session, mark) = self.open(scope).await?;
        let mut state = self.state();
        self.is_superseded.store(false, Ordering::Release);
        *state =
            State { scope: Some(scope.clone()), mark: mark.clone(), ready: Some(session), current: None };
        Ok(mark)
    }

    fn session(&self) -> u64 {
        self.sessions.load(Ordering::Acquire)
    }

    fn close(&self, session: u64) -> ClosedTransaction {
        let state = self.state();
        let current = state.current.as_ref().filter(|_| self.session() == session);
        ClosedTransaction { session, producer: current.map_or(0, Session::turn) }
    }

    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        let _committing = self.committing.lock().await;
        let current = self.state().current.clone();
        let current = current.filter(|_| self.session() == closed.session).ok_or_else(lost)?;
        let outcome = current.commit(closed.producer, mark.clone()).await;
        let mut state = self.state();
        if outcome.is_err() {
            // The outcome is unknown, so the session commits nothing more.
            state.current = None;
        }
        outcome?;
        // From now on the topic must exist.
        if let Some(scope) = &mut state.scope {
            scope.is_new = false;
        }
        state.mark = Some(mark);
        Ok(())
    }

    fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Acquire)
    }
}
