//! Everything that is read, in sessions that cannot write.

use std::collections::BTreeSet;
use std::time::Duration;

use brokers::kafka::{Begun, ReadTopic, TopicReader};
use futures_util::TryStreamExt as _;
use inbox::reconcile::{AppliedIds, Unfinished, Whose};
use message::Fingerprint;
use outbox::read_only::ReadOnly;
use outbox::reconcile::Rows;
use secrecy::ExposeSecret as _;
use sqlx::{AssertSqlSafe, Row as _, ValueRef as _};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::pace::Pace;
use super::progress::Progress;
use super::range::{Range, id_at};
use super::spool::{At, Spool};
use crate::cli::exit::Exit;
use crate::cli::failure::{Failure, exit_of};
use crate::config::{Broker, InboxConfig, PipelineConfig};

/// The application name under which an administrator of PostgreSQL sees the sessions.
const APPLICATION: &str = "relay verify";
/// Rows of one statement.
pub(super) const PAGE_ROWS: u32 = 1_000;

/// How it is read.
pub(super) struct Reading {
    pub(super) pace: Pace,
    pub(super) progress: Progress,
    pub(super) statement_timeout: Duration,
}

/// Opens the outbox of a pipeline.
pub(super) async fn outbox(pipeline: &PipelineConfig, timeout: Duration) -> Result<Box<dyn Rows>, Failure> {
    let url = pipeline.database.url()?;
    let allow = pipeline.database.options().allow_plaintext;
    Ok(match ReadOnly::open(url.expose_secret(), allow, APPLICATION, timeout).await? {
        ReadOnly::Postgres(connection) => {
            outbox::reconcile::postgres(connection, pipeline.database.schema(), &pipeline.name).await?
        }
        ReadOnly::Sqlite(connection) => outbox::reconcile::sqlite(connection, &pipeline.name).await?,
    })
}

async fn session(inbox: &InboxConfig, timeout: Duration) -> Result<ReadOnly, Failure> {
    let url = inbox.url.load("verify.inbox.url")?;
    let opened = ReadOnly::open(url.expose_secret(), inbox.allow_plaintext, APPLICATION, timeout).await;
    opened.map_err(|error| Failure::from(error).about(format_args!("inbox {}", inbox.consumer)))
}

/// Opens an inbox.
pub(super) async fn inbox(inbox: &InboxConfig, timeout: Duration) -> Result<Box<dyn AppliedIds>, Failure> {
    let whose = Whose { consumer: inbox.consumer.clone(), scope: inbox.scope.clone() };
    let opened = match session(inbox, timeout).await? {
        ReadOnly::Postgres(connection) => {
            inbox::reconcile::postgres(connection, inbox.schema.as_ref(), whose).await
        }
        ReadOnly::Sqlite(connection) => inbox::reconcile::sqlite(connection, whose).await,
    };
    opened.map_err(|error| Failure::from(error).about(format_args!("inbox {}", inbox.consumer)))
}

/// A failure of an inbox's database.
pub(super) fn of_inbox(error: inbox::StoreError) -> Failure {
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    Failure::new(exit_of(error.fault()), format_args!("{error}: {source}"))
}

impl Reading {
    /// All rows of the range.
    pub(super) async fn outbox(
        &mut self,
        rows: &mut dyn Rows,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), Failure> {
        let mut after = range.after;
        loop {
            let page = rows.page(after, range.until, PAGE_ROWS).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            spool.add_rows(&page).await?;
            self.progress.rows("outbox", page.len());
            self.pace.rows(page.len()).await;
        }
    }

    /// All that an inbox remembers of the range.
    pub(super) async fn inbox(
        &mut self,
        memory: &mut dyn AppliedIds,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), Failure> {
        let mut after = (range.after, String::from("\u{10ffff}"));
        loop {
            let page = memory.page((after.0, &after.1), range.until, PAGE_ROWS).await.map_err(of_inbox)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = (last.id, last.scope.clone());
            let seen: Vec<_> = page.iter().map(|row| (row.id, row.fingerprint.as_bytes().to_vec())).collect();
            spool.add(At::Inbox(place), &seen).await?;
            self.progress.rows("inbox", page.len());
            self.pace.rows(page.len()).await;
        }
    }

    /// The message ids of effects, by the operator's own statement.
    pub(super) async fn effects(
        &mut self,
        inbox: &InboxConfig,
        sql: &str,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), Failure> {
        let failed = |error: sqlx::Error| {
            let help =
                "verify.inbox.effects is one SELECT whose first column is the message id, as uuid or text";
            let message =
                format_args!("the effects of {:?} could not be read: {error}", inbox.consumer.as_str());
            Failure::with_help(Exit::Usage, message, help)
        };
        // The operator's own words, in a session that cannot write.
        let statement = || AssertSqlSafe(sql.to_owned());
        let mut buffer = Vec::new();
        macro_rules! read {
            ($connection:ident) => {{
                let mut rows = sqlx::query(statement()).fetch(&mut $connection);
                while let Some(row) = rows.try_next().await.map_err(failed)? {
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
        // Read in one statement, as fast as rows may be read: it has no time limit of its own.
        match session(inbox, Duration::ZERO).await? {
            ReadOnly::Postgres(mut connection) => read!(connection),
            ReadOnly::Sqlite(mut connection) => read!(connection),
        }
        self.put_effects(&mut buffer, place, range, spool).await
    }

    async fn put_effects(
        &mut self,
        ids: &mut Vec<Uuid>,
        place: usize,
        range: Range,
        spool: &mut Spool,
    ) -> Result<(), Failure> {
        let count = ids.len();
        let seen: Vec<_> =
            ids.drain(..).filter(|id| range.contains(*id)).map(|id| (id, Vec::new())).collect();
        spool.add(At::Effects(place), &seen).await?;
        self.progress.rows("effects", count);
        self.pace.rows(count).await;
        Ok(())
    }
}

/// Returns those of these messages that the inbox knows and has not applied.
pub(super) async fn unfinished(memory: &mut dyn AppliedIds, ids: &[Uuid]) -> Result<Vec<Uuid>, Failure> {
    let found: Vec<(Uuid, Unfinished)> = memory.unfinished(ids).await.map_err(of_inbox)?;
    Ok(found.into_iter().map(|(id, _)| id).collect())
}

/// The result of reading a broker.
#[derive(Debug, Default)]
pub(super) struct BrokerRead {
    /// Records so far, copies included.
    pub(super) records: u64,
    /// Records that are no messages.
    pub(super) unreadable: u64,
    /// The log began later than the range: of older messages nothing can be said.
    pub(super) cut_at: Option<Uuid>,
}

/// Why the broker of a pipeline cannot be read; nothing when it can.
pub(super) fn unreadable(broker: &Broker) -> Option<&'static str> {
    match broker {
        Broker::Kafka(_) => None,
        Broker::Rabbitmq(_) => Some("RabbitMQ keeps no log to read"),
        Broker::Sqs(_) => Some("SQS keeps no log to read"),
    }
}

impl Reading {
    /// The topics from the beginning of the range to their present ends, beside all groups. `since_ms` goes back further
    /// than the ids for the sake of clocks that differ.
    pub(super) async fn broker(
        &mut self,
        broker: &Broker,
        topics: &BTreeSet<String>,
        from_ms: Option<i64>,
        range: Range,
        spool: &mut Spool,
    ) -> Result<BrokerRead, Failure> {
        let mut read = BrokerRead::default();
        let Broker::Kafka(config) = broker else { return Ok(read) };
        let mut topic_reader = TopicReader::new(config).map_err(of_reader)?;
        for topic in topics {
            let name = topic.clone();
            let begun: Option<Begun>;
            (topic_reader, begun) =
                blocking(topic_reader, move |topic_reader| topic_reader.begin(&name, from_ms)).await?;
            let Some(begun) = begun else { continue };
            let mut earliest: Option<i64> = None;
            loop {
                let records: Vec<ReadTopic>;
                (topic_reader, records) =
                    blocking(topic_reader, |topic_reader| topic_reader.read(PAGE_ROWS as usize)).await?;
                if records.is_empty() {
                    break;
                }
                earliest = records.iter().filter_map(|record| record.at_ms).chain(earliest).min();
                self.put_records(records, range, spool, &mut read).await?;
            }
            if begun.is_cut {
                // With nothing left, nothing can be said at all.
                let cut_at = earliest.map_or(Uuid::max(), |at| id_at(at.unsigned_abs()));
                read.cut_at = read.cut_at.max(Some(cut_at));
            }
        }
        Ok(read)
    }

    async fn put_records(
        &mut self,
        records: Vec<ReadTopic>,
        range: Range,
        spool: &mut Spool,
        read: &mut BrokerRead,
    ) -> Result<(), Failure> {
        let count = records.len();
        let mut seen = Vec::with_capacity(count);
        for record in records {
            match record.message {
                Some(message) if range.contains(message.id.as_uuid()) => {
                    // The last chunk stands for a message in chunks: the relay hands it over after the others.
                    let fingerprint = match &message.chunk {
                        None => Fingerprint::of(&message),
                        Some(chunk) if chunk.is_last() => chunk.fingerprint(),
                        Some(_) => continue,
                    };
                    read.records += 1;
                    seen.push((message.id.as_uuid(), fingerprint.as_bytes().to_vec()));
                }
                Some(_) => {}
                None => read.unreadable += 1,
            }
        }
        spool.add(At::Broker, &seen).await?;
        self.progress.rows("broker", count);
        self.pace.rows(count).await;
        Ok(())
    }
}

fn of_reader(error: brokers::kafka::AdminError) -> Failure {
    match error {
        brokers::kafka::AdminError::Setting(error) => error.into(),
        error => Failure::new(Exit::Unavailable, error),
    }
}

/// Calls into the client library, which blocks.
async fn blocking<T: Send + 'static>(
    mut topic_reader: TopicReader,
    call: impl FnOnce(&mut TopicReader) -> Result<T, brokers::kafka::AdminError> + Send + 'static,
) -> Result<(TopicReader, T), Failure> {
    let called = spawn_blocking(move || call(&mut topic_reader).map(|value| (topic_reader, value))).await;
    match called {
        Ok(done) => done.map_err(of_reader),
        Err(error) => Err(Failure::new(Exit::Broken, format_args!("reading the broker broke off: {error}"))),
    }
}
