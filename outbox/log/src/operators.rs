//! Operators' queries and decisions, written once for all databases.
//!
//! Each database opens sessions and answers what it finds out in its own way ([`Operators`]). From
//! these come [`LogAdmin`] and [`Desk`], whose other queries and decisions run on [`Tables`].

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Database;
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::admin::decision::{Batch, ChosenEntry, DecideError, OperatorDecision};
use crate::admin::entry::{AuditQuery, AuditRecord, AuditSlice, ListedEntry};
use crate::admin::status::{Blocker, Picture, RelayStatus};
use crate::admin::{
    Confirmed, DecisionRecord, Desk, EditRecord, FoundParked, LogAdmin, Operation, ParkedContent,
    ParkedFilter, ParkedQuery, ParkedSlice, Survey,
};
use crate::dialect::Dialect;
use crate::failure::{in_time, within};
use crate::tables::Tables;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName};

/// One result for each entry of a decision.
pub(crate) type Verdicts = Vec<Result<(), DecideError>>;

/// A log that operators ask and decide about.
pub(crate) trait Operators: Clone + Send + Sync + 'static {
    /// The database.
    type Database: Dialect;
    /// A session that ends when it is dropped.
    type Session: DerefMut<Target = <Self::Database as Database>::Connection> + Send;

    /// How long a session is kept between two calls. An operator may think longer about a question,
    /// and what is between this process and the server may have forgotten the connection by then.
    const IDLE_MAX: Duration;

    /// Returns the tables, in this log's schema.
    fn tables(&self) -> &Tables<Self::Database>;

    /// Returns the maximum duration of a call; `None` where only each statement has a limit.
    fn call_max(&self) -> Option<Duration>;

    /// Opens a session.
    fn session(&self) -> impl Future<Output = Result<Self::Session, LogError>> + Send;

    /// Begins a transaction for queries, where they need one.
    fn begin_query(_session: &mut Self::Session) -> impl Future<Output = Result<(), LogError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Ends the transaction of a query.
    fn end_query(_session: &mut Self::Session) -> impl Future<Output = Result<(), LogError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Reads all relays, or one, within the limit of a call.
    fn find_relays(
        &self,
        only: Option<&RelayName>,
    ) -> impl Future<Output = Result<Vec<RelayStatus>, LogError>> + Send;

    /// Does what [`LogAdmin::picture`] describes.
    fn find_picture(&self, relay: &RelayName) -> impl Future<Output = Result<Picture, LogError>> + Send;

    /// Does what [`LogAdmin::blocker`] describes.
    fn find_blocker(&self) -> impl Future<Output = Result<Option<Blocker>, LogError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Does what [`LogAdmin::lock_holder`] describes.
    fn find_lock_holder(&self) -> impl Future<Output = Result<Option<String>, LogError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Carries out a decision. Sets `is_committing` before it sends the commit: until then, an end
    /// of this future also ends the transaction.
    fn decide_in(
        &self,
        session: &mut Self::Session,
        batch: Batch<'_>,
        is_committing: &AtomicBool,
    ) -> impl Future<Output = Result<Verdicts, DecideError>> + Send;

    /// Opens a session for queries, in a transaction that ends with it.
    fn look(&self) -> impl Future<Output = Result<Self::Session, LogError>> + Send {
        async {
            let mut session = self.session().await?;
            Self::begin_query(&mut session).await?;
            Ok(session)
        }
    }

    /// Waits for a call as long as one may take.
    fn limited<T: Send>(
        &self,
        call: impl Future<Output = Result<T, LogError>> + Send,
    ) -> impl Future<Output = Result<T, LogError>> + Send {
        limited(self.call_max(), call)
    }
}

async fn limited<T>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<T, LogError>>,
) -> Result<T, LogError> {
    match limit {
        Some(limit) => within(limit, call).await,
        None => call.await,
    }
}

#[async_trait]
impl<L: Operators> LogAdmin for L {
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError> {
        self.find_relays(None).await
    }

    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError> {
        Ok(self.find_relays(Some(relay)).await?.pop())
    }

    async fn blocker(&self) -> Result<Option<Blocker>, LogError> {
        self.find_blocker().await
    }

    async fn picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        self.find_picture(relay).await
    }

    async fn lock_holder(&self) -> Result<Option<String>, LogError> {
        self.find_lock_holder().await
    }

    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let ask =
            async { self.tables().list(&mut *self.look().await?, relay, state, after, entries_max).await };
        self.limited(ask).await
    }

    async fn discarded(&self, relay: &RelayName, message_ids: &[Uuid]) -> Result<Vec<ListedEntry>, LogError> {
        let ask = async { self.tables().discarded(&mut *self.look().await?, relay, message_ids).await };
        self.limited(ask).await
    }

    async fn held(&self, relay: &RelayName, entries_max: u32) -> Result<Vec<ListedEntry>, LogError> {
        let ask = async { self.tables().held(&mut *self.look().await?, relay, entries_max).await };
        self.limited(ask).await
    }

    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Verdicts, DecideError> {
        self.desk(relay).decide(entries, &decree, None).await
    }

    fn desk(&self, relay: &RelayName) -> Box<dyn Desk> {
        Box::new(LogDesk { log: self.clone(), relay: relay.clone(), idle: None })
    }

    async fn audit_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let ask =
            async { self.tables().decisions(&mut *self.look().await?, relay, before, records_max).await };
        self.limited(ask).await
    }

    async fn audited(&self, relay: &RelayName, asked: &AuditQuery) -> Result<AuditSlice, LogError> {
        let ask = async { self.tables().decided(&mut *self.look().await?, relay, asked).await };
        self.limited(ask).await
    }

    async fn audit_of(
        &self,
        relay: &RelayName,
        message_id: Uuid,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let ask = async {
            self.tables().decisions_of(&mut *self.look().await?, relay, message_id, records_max).await
        };
        self.limited(ask).await
    }

    async fn content(
        &self,
        relay: &RelayName,
        entry: &ChosenEntry,
    ) -> Result<Option<ParkedContent>, LogError> {
        let ask = async { self.tables().content(&mut *self.look().await?, relay, entry).await };
        self.limited(ask).await
    }

    async fn edit(&self, relay: &RelayName, number: i64) -> Result<Option<EditRecord>, LogError> {
        let ask = async { self.tables().edit(&mut *self.look().await?, relay, number).await };
        self.limited(ask).await
    }

    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError> {
        let ask = async { self.tables().pauses(&mut *self.look().await?, relay).await };
        self.limited(ask).await
    }

    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        let by = scope.signed(actor, reason)?;
        let paused = async { self.tables().pause(&mut *self.session().await?, relay, scope, &by).await };
        self.limited(paused).await
    }

    async fn resume(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError> {
        let by = scope.signed(actor, reason)?;
        let resumed =
            async { self.tables().resume(&mut *self.session().await?, relay, scope, since, &by).await };
        self.limited(resumed).await
    }

    async fn operations_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let ask =
            async { self.tables().operations(&mut *self.look().await?, relay, before, records_max).await };
        self.limited(ask).await
    }

    async fn operations_of(
        &self,
        relay: &RelayName,
        action: &str,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let ask = async {
            let mut session = self.look().await?;
            self.tables().operations_of(&mut session, relay, action, before, records_max).await
        };
        self.limited(ask).await
    }
}

/// A relay, and a session that is opened with the first call. A call that fails or is dropped ends
/// the session: its state is unknown.
struct LogDesk<L: Operators> {
    log: L,
    relay: RelayName,
    idle: Option<Idle<L::Session>>,
}

/// A session between two calls.
struct Idle<S> {
    session: S,
    since: Instant,
}

impl<L: Operators> LogDesk<L> {
    async fn take(&mut self) -> Result<L::Session, LogError> {
        match self.idle.take() {
            Some(Idle { session, since }) if since.elapsed() < L::IDLE_MAX => Ok(session),
            _ => self.log.session().await,
        }
    }

    fn keep(&mut self, session: L::Session) {
        self.idle = Some(Idle { session, since: Instant::now() });
    }

    /// Takes the session, in a transaction for queries.
    async fn look(&mut self) -> Result<L::Session, LogError> {
        let mut session = self.take().await?;
        L::begin_query(&mut session).await?;
        Ok(session)
    }

    /// Ends the transaction of a query, and keeps the session.
    async fn put_back(&mut self, mut session: L::Session) -> Result<(), LogError> {
        L::end_query(&mut session).await?;
        self.keep(session);
        Ok(())
    }
}

#[async_trait]
impl<L: Operators> Desk for LogDesk<L> {
    async fn parked(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<ListedEntry>, LogError> {
        let limit = self.log.call_max();
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables().matching(&mut session, &self.relay, query).await?;
            self.put_back(session).await.map(|()| found)
        };
        limited(limit, ask).await
    }

    async fn choose(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<FoundParked>, LogError> {
        let limit = self.log.call_max();
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables().choose(&mut session, &self.relay, query).await?;
            self.put_back(session).await.map(|()| found)
        };
        limited(limit, ask).await
    }

    async fn now(&mut self) -> Result<OffsetDateTime, LogError> {
        let limit = self.log.call_max();
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables().now(&mut session).await?;
            self.put_back(session).await.map(|()| found)
        };
        limited(limit, ask).await
    }

    async fn survey(&mut self, state: ExceptionState, filter: &ParkedFilter) -> Result<Survey, LogError> {
        let limit = self.log.call_max();
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables().survey(&mut session, &self.relay, state, filter).await?;
            self.put_back(session).await.map(|()| found)
        };
        limited(limit, ask).await
    }

    async fn decide(
        &mut self,
        entries: &[ChosenEntry],
        decree: &OperatorDecision,
        confirmed: Option<Confirmed>,
    ) -> Result<Verdicts, DecideError> {
        decree.check(entries.len())?;
        let limit = self.log.call_max();
        let is_committing = AtomicBool::new(false);
        let done = async {
            let mut session = self.take().await?;
            let batch = Batch { relay: &self.relay, entries, decree, confirmed };
            let done = self.log.decide_in(&mut session, batch, &is_committing).await?;
            self.keep(session);
            Ok(done)
        };
        let Some(limit) = limit else { return done.await };
        match in_time(limit, done).await {
            Ok(done) => done,
            Err(late) if is_committing.load(Ordering::Relaxed) => Err(DecideError::Unknown(late)),
            Err(late) => Err(late.into()),
        }
    }

    async fn decision(&mut self, id: Uuid) -> Result<Option<DecisionRecord>, LogError> {
        let limit = self.log.call_max();
        let ask = async {
            let mut session = self.look().await?;
            let found = self.log.tables().decision(&mut session, &self.relay, id).await?;
            self.put_back(session).await.map(|()| found)
        };
        limited(limit, ask).await
    }
}
