//! A session for one job of an operator.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Executor as _;
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::begin_to_look;
use crate::admin::decision::{Batch, ChosenEntry, DecideError, OperatorDecision};
use crate::admin::{
    Confirmed, DecisionRecord, Desk, FoundParked, ListedEntry, ParkedFilter, ParkedQuery, ParkedSlice, Survey,
};
use crate::failure::{in_time, within};
use crate::postgres::brief::Brief;
use crate::postgres::store::PostgresLog;
use crate::{ExceptionState, LogError, RelayName};

/// How long a session is kept between two calls. An operator may think longer about a question, and
/// what is between this process and the server may have forgotten the connection by then.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A relay, and a session that is opened with the first call. A call that fails or is dropped ends
/// the session: its state is unknown.
pub(super) struct PostgresDesk {
    log: PostgresLog,
    relay: RelayName,
    idle: Option<Idle>,
}

/// A session between two calls.
struct Idle {
    session: Brief,
    since: Instant,
}

impl PostgresDesk {
    pub(super) fn new(log: PostgresLog, relay: RelayName) -> Self {
        Self { log, relay, idle: None }
    }

    async fn take(&mut self) -> Result<Brief, LogError> {
        match self.idle.take() {
            Some(Idle { session, since }) if since.elapsed() < IDLE_MAX => Ok(session),
            _ => self.log.admin().await,
        }
    }

    fn keep(&mut self, session: Brief) {
        self.idle = Some(Idle { session, since: Instant::now() });
    }

    /// Takes the session, in a transaction for queries.
    async fn look(&mut self) -> Result<Brief, LogError> {
        let mut session = self.take().await?;
        begin_to_look(&mut session).await?;
        Ok(session)
    }

    /// Ends the transaction of a query, and keeps the session.
    async fn put_back(&mut self, mut session: Brief) -> Result<(), LogError> {
        session.execute("ROLLBACK").await.map_err(LogError::during("end a query"))?;
        self.keep(session);
        Ok(())
    }
}

#[async_trait]
impl Desk for PostgresDesk {
    async fn parked(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<ListedEntry>, LogError> {
        let limit = self.log.options.call_timeout;
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables.matching(&mut session, &self.relay, query).await?;
            self.put_back(session).await.map(|()| found)
        };
        within(limit, ask).await
    }

    async fn choose(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<FoundParked>, LogError> {
        let limit = self.log.options.call_timeout;
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables.choose(&mut session, &self.relay, query).await?;
            self.put_back(session).await.map(|()| found)
        };
        within(limit, ask).await
    }

    async fn now(&mut self) -> Result<OffsetDateTime, LogError> {
        let limit = self.log.options.call_timeout;
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables.now(&mut session).await?;
            self.put_back(session).await.map(|()| found)
        };
        within(limit, ask).await
    }

    async fn survey(&mut self, state: ExceptionState, filter: &ParkedFilter) -> Result<Survey, LogError> {
        let limit = self.log.options.call_timeout;
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables.survey(&mut session, &self.relay, state, filter).await?;
            self.put_back(session).await.map(|()| found)
        };
        within(limit, ask).await
    }

    async fn decide(
        &mut self,
        entries: &[ChosenEntry],
        decree: &OperatorDecision,
        confirmed: Option<Confirmed>,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError> {
        decree.check(entries.len())?;
        let limit = self.log.options.call_timeout;
        let is_committing = AtomicBool::new(false);
        let done = async {
            let mut session = self.take().await?;
            let batch = Batch { relay: &self.relay, entries, decree, confirmed };
            let done = self.log.carry_out(&mut session, batch, &is_committing).await?;
            self.keep(session);
            Ok(done)
        };
        match in_time(limit, done).await {
            Ok(done) => done,
            Err(late) if is_committing.load(Ordering::Relaxed) => Err(DecideError::Unknown(late)),
            Err(late) => Err(late.into()),
        }
    }

    async fn decision(&mut self, id: Uuid) -> Result<Option<DecisionRecord>, LogError> {
        let limit = self.log.options.call_timeout;
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables.decision(&mut session, &self.relay, id).await?;
            self.put_back(session).await.map(|()| found)
        };
        within(limit, ask).await
    }
}
