//! Reads of databases and brokers, in sessions that cannot write.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(feature = "postgres")]
use futures_util::TryFutureExt as _;
use futures_util::TryStreamExt as _;
use inbox::reconcile::Whose;
use outbox_log::read_only::ReadOnly;
use outbox_log::reconcile::{Row, Stage};
use secrecy::ExposeSecret as _;
use sqlx::{AssertSqlSafe, Row as _, ValueRef as _};
use uuid::Uuid;

#[cfg(feature = "postgres")]
use super::alive::Watch;
use super::bounded::{Bound, InboxIds, OutboxRows};
use super::progress::Progress;
use super::range::Range;
use super::spool::{At, Spool};
use crate::error::OperateError;
use crate::pace::Pace;
use crate::tables::Tables;
use crate::{Broker, InboxConfig, PipelineConfig};
use engine::Filter;

/// The application name of the sessions in PostgreSQL.
pub(super) const APPLICATION: &str = "relay verify";
/// Rows per statement.
pub(super) const PAGE_ROWS: u32 = 1_000;

/// Pace, progress and time limit of reads.
pub struct Reading {
    pub(super) pace: Pace,
    pub(super) progress: Box<dyn Progress>,
    pub(super) statement_timeout: Duration,
}

/// Opens the outbox of a pipeline.
pub(super) async fn outbox(pipeline: &PipelineConfig, timeout: Duration) -> Result<OutboxRows, OperateError> {
    let url = pipeline.database.url()?;
    let options = pipeline.database.options();
    let allow = options.allow_plaintext;
    let tables = Tables::new(url.clone(), options.clone());
    let bound = Bound::of("the outbox", &tables, timeout);
    let opened = ReadOnly::open(url.expose_secret(), allow, APPLICATION).await;
    let rows = match opened.map_err(|error| bound.failed(error))? {
        #[cfg(feature = "postgres")]
        ReadOnly::Postgres(connection) => {
            let schema = pipeline.database.schema();
            let opening = outbox_log::reconcile::postgres_within(connection, schema, &pipeline.name, timeout);
            bound.call(opening).await?
        }
        ReadOnly::Sqlite(connection) => outbox_log::reconcile::sqlite(connection, &pipeline.name).await?,
    };
    Ok(OutboxRows { rows, bound })
}

/// Opens a session in the database of an inbox.
pub(super) async fn session(inbox: &InboxConfig, bound: &Bound) -> Result<ReadOnly, OperateError> {
    let url = inbox.url.load("verify.inbox.url")?;
    let opened = ReadOnly::open(url.expose_secret(), inbox.allow_plaintext, APPLICATION).await;
    opened.map_err(|error| bound.failed(error))
}

/// Bounds the calls to the database of an inbox.
fn bound_of(inbox: &InboxConfig, timeout: Duration) -> Result<Bound, OperateError> {
    Ok(Bound::of(format_args!("inbox {}", inbox.consumer), &inbox.tables()?, timeout))
}

/// Opens an inbox.
pub(super) async fn inbox(inbox: &InboxConfig, timeout: Duration) -> Result<InboxIds, OperateError> {
    let whose = Whose { consumer: inbox.consumer.clone(), tenant: inbox.scope.clone() };
    let bound = bound_of(inbox, timeout)?;
    let ids = match session(inbox, &bound).await? {
        #[cfg(feature = "postgres")]
        ReadOnly::Postgres(connection) => {
            let schema = inbox.schema.as_ref();
            bound.call(inbox::reconcile::postgres(connection, schema, whose, timeout)).await?
        }
        ReadOnly::Sqlite(connection) => bound.call(inbox::reconcile::sqlite(connection, whose)).await?,
    };
    Ok(InboxIds { ids, bound })
}

/// Marks rows that the pipeline leaves to others. A parked or discarded message is its own, even if
/// its filter has changed since.
pub(super) fn leave_out(rows: &mut [Row], filter: &Filter) {
    let is_own = |row: &Row| matches!(row.stage, Stage::Beside(_) | Stage::Discarded);
    for row in rows.iter_mut().filter(|row| !is_own(row)) {
        if !filter.takes(&(row.topic.as_str(), &row.labels)) {
            row.stage = Stage::LeftOut;
        }
    }
}

impl Reading {
    /// Reads at most `rows_per_second`, over all databases and the broker. `statement_timeout` is
    /// the time limit of a statement in PostgreSQL.
    #[must_use]
    pub fn new(
        rows_per_second: NonZeroU32,
        statement_timeout: Duration,
        progress: Box<dyn Progress>,
    ) -> Self {
        Self { pace: Pace::new(rows_per_second), progress, statement_timeout }
    }

    /// Reads all rows of the range.
    pub(super) async fn outbox(
        &mut self,
        rows: &mut OutboxRows,
        filter: &Filter,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), OperateError> {
        let mut after = range.after;
        loop {
            let mut page = rows.page(after, range.until, PAGE_ROWS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            leave_out(&mut page, filter);
            spool.add_rows(&page).await?;
            self.progress.rows("outbox", page.len());
            self.pace.rows(page.len()).await;
        }
    }

    /// Reads all ids of the range that an inbox remembers.
    pub(super) async fn inbox(
        &mut self,
        memory: &mut InboxIds,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), OperateError> {
        let (mut after, mut after_tenant) = (range.after, String::from("\u{10ffff}"));
        loop {
            let page = memory.page(after, &after_tenant, range.until, PAGE_ROWS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            (after, after_tenant) = (last.id, last.tenant.clone());
            let seen: Vec<_> = page.iter().map(|row| (row.id, row.fingerprint.as_bytes().to_vec())).collect();
            spool.add(At::Inbox(place), &seen).await?;
            self.progress.rows("inbox", page.len());
            self.pace.rows(page.len()).await;
        }
    }

    /// Reads the message ids of effects with the operator's own statement.
    pub(super) async fn effects(
        &mut self,
        inbox: &InboxConfig,
        sql: &str,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), OperateError> {
        let failed = |error: sqlx::Error| {
            let help =
                "verify.inbox.effects is one SELECT whose first column is the message id, as uuid or text";
            let told = message::error_text::chain(&error);
            let message = format_args!("could not read the effects of {:?}: {told}", inbox.consumer.as_str());
            OperateError::refused(message, help)
        };
        // The operator's own SQL, in a session that cannot write.
        let statement = || AssertSqlSafe(sql.to_owned());
        let mut buffer = Vec::new();
        macro_rules! read {
            ($connection:expr, $next:ident => $row:expr) => {{
                let mut rows = sqlx::query(statement()).fetch($connection);
                loop {
                    let $next = rows.try_next();
                    let Some(row) = $row.map_err(failed)? else { break };
                    if row.try_get_raw(0).map_err(failed)?.is_null() {
                        continue;
                    }
                    let id = match row.try_get::<Uuid, _>(0) {
                        Ok(id) => Ok(id),
                        Err(_) => row.try_get::<&str, _>(0).and_then(|text| {
                            Uuid::parse_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
                        }),
                    };
                    buffer.push(id.map_err(failed)?);
                    if buffer.len() == PAGE_ROWS as usize {
                        self.put_effects(&mut buffer, place, range, spool).await?;
                    }
                }
            }};
        }
        let bound = bound_of(inbox, self.statement_timeout)?;
        // One statement reads as fast as the pace allows: it has no time limit of its own.
        match session(inbox, &bound).await? {
            #[cfg(feature = "postgres")]
            ReadOnly::Postgres(mut connection) => {
                let beginning = outbox_log::read_only::begin(&mut connection, Duration::ZERO);
                let mut tx = bound.call(beginning.map_err(failed)).await?;
                let watch = bound.call(Watch::of(&mut tx, inbox, &bound).map_err(failed)).await?;
                read!(&mut *tx, row => watch.next(row).await?);
            }
            ReadOnly::Sqlite(mut connection) => read!(&mut connection, row => row.await),
        }
        self.put_effects(&mut buffer, place, range, spool).await
    }

    async fn put_effects(
        &mut self,
        ids: &mut Vec<Uuid>,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), OperateError> {
        let count = ids.len();
        let seen: Vec<_> =
            ids.drain(..).filter(|id| range.contains(*id)).map(|id| (id, Vec::new())).collect();
        spool.add(At::Effects(place), &seen).await?;
        self.progress.rows("effects", count);
        self.pace.rows(count).await;
        Ok(())
    }
}

/// The result of reading a broker.
#[derive(Debug, Default)]
pub(super) struct BrokerRead {
    /// Records so far, copies included.
    pub(super) records: u64,
    /// Records that are not messages.
    pub(super) unreadable: u64,
    /// Topics of which older records have been deleted. Nothing is known about messages with ids
    /// below these.
    pub(super) cut_at: BTreeMap<String, Uuid>,
}

/// Returns why the broker of a pipeline cannot be read, or `None` when it can.
pub(super) fn unreadable(broker: &Broker) -> Option<&'static str> {
    match broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka(_) => None,
        #[cfg(feature = "rabbitmq")]
        Broker::Rabbitmq(_) => Some("RabbitMQ has no log that can be read"),
        #[cfg(feature = "sqs")]
        Broker::Sqs(_) => Some("SQS has no log that can be read"),
        #[cfg(feature = "http")]
        Broker::Http(_) => Some("HTTP endpoints have no log that can be read"),
        Broker::Given { .. } => Some("the settings of its broker are not known here"),
    }
}

#[cfg(not(feature = "kafka"))]
impl Reading {
    /// Reads nothing: without Kafka, no broker of this build keeps a log.
    pub(super) async fn broker(
        &mut self,
        _: &Broker,
        _: &std::collections::BTreeSet<String>,
        _: Option<i64>,
        _: Range,
        _: &mut Spool,
    ) -> Result<BrokerRead, OperateError> {
        Ok(BrokerRead::default())
    }

    /// Returns nothing: without Kafka, no broker of this build has groups.
    pub(super) async fn committed(
        &self,
        _: &Broker,
        _: &str,
        _: &std::collections::BTreeSet<String>,
    ) -> Result<super::reconcile::Committed, OperateError> {
        Ok(super::reconcile::Committed::new())
    }
}
