//! Queries a PostgreSQL server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use message::loopback::is_loopback;
use migrations::{Identifier, Line, Migrator};
use outbox::connect::{Hosts, Primary};
use outbox_log::LogError;
use outbox_log::postgres::unconnected;
use sqlx::postgres::{PgConnectOptions, PgRow, PgSslMode};
use sqlx::{Connection as _, PgConnection, Postgres, Row as _};
use tokio::time::timeout;

use super::asked::rows;
use super::lines::lines;
use super::{TIME_LIMIT, Unreachable};
use crate::doctor::clock::Skew;
use crate::doctor::facts::{
    IdSequence, OpenTransaction, OtherOutbox, PostgresFacts, PreparedTransaction, Slot, Timeline,
};

const SERVER: &str = include_str!("../sql/server.sql");
const ISOLATION: &str = include_str!("../sql/isolation.sql");
const ASYNCHRONOUS: &str = include_str!("../sql/asynchronous.sql");
const TRANSACTIONS: &str = include_str!("../sql/transactions.sql");
const PREPARED: &str = include_str!("../sql/prepared.sql");
const SLOTS: &str = include_str!("../sql/slots.sql");
const SEQUENCE: &str = include_str!("../sql/sequence.sql");
const TOPICS: &str = include_str!("../sql/topics.sql");
const SLOTS_WITHOUT_LOG: &str = include_str!("../sql/slots_without_log.sql");
const TIMELINE: &str = include_str!("../sql/timeline.sql");
const OUTBOXES: &str = include_str!("../sql/outboxes.sql");
const UNREAD: &str = include_str!("../sql/unread.sql");
const COLLATION: &str = include_str!("../sql/collation.sql");

/// The first version that records the version of a database's collation.
const COLLATION_VERSION_MIN: i32 = 150_000;

/// The facts of the server, and the topics of its latest messages.
pub(in crate::doctor) struct Gathered {
    pub(in crate::doctor) facts: PostgresFacts,
    pub(in crate::doctor) topics: Vec<String>,
}

/// Gathers all facts about one database.
pub(in crate::doctor) async fn gather(
    url: &str,
    allow_plaintext: bool,
    schema: Option<&Identifier>,
) -> Result<Gathered, Unreachable> {
    let hosts = Hosts::of(url, allow_plaintext).map_err(LogError::from)?;
    let Primary { mut connection, options } = primary(&hosts.application_name("relay doctor")).await?;
    let gathered = ask(&mut connection, &options, schema).await?;
    // A failure to close has no consequence.
    let _ = timeout(TIME_LIMIT, connection.close()).await;
    Ok(gathered)
}

/// Opens a session with the primary.
pub(super) async fn connect(hosts: &Hosts) -> Result<PgConnection, Unreachable> {
    Ok(primary(hosts).await?.connection)
}

async fn primary(hosts: &Hosts) -> Result<Primary, Unreachable> {
    let found = timeout(TIME_LIMIT, hosts.primary()).await.map_err(|_| Unreachable::late())?;
    Ok(found.map_err(unconnected)?)
}

/// Returns the tables of all lines that a crash of the server would empty.
async fn unlogged_tables(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
) -> Result<Vec<String>, Unreachable> {
    // Each line returns the table of the bookkeeping.
    let mut found = BTreeSet::new();
    for line in Line::ALL {
        let migrator = Migrator::<Postgres>::new(line).schema(schema.cloned());
        found.extend(migrator.unlogged(connection).await.map_err(LogError::from)?);
    }
    Ok(found.into_iter().collect())
}

async fn ask(
    connection: &mut PgConnection,
    options: &PgConnectOptions,
    schema: Option<&Identifier>,
) -> Result<Gathered, Unreachable> {
    let (before, asked) = (SystemTime::now(), Instant::now());
    let row = rows(connection, None, SERVER).await?.into_iter().next();
    let row = row.ok_or_else(|| Unreachable::operator("the server does not report its version"))?;
    let took = asked.elapsed();
    let replica: bool = get(&row, "replica")?;
    let pid: i32 = get(&row, "pid")?;
    // Only after the session's own defaults were read.
    settled(connection).await?;
    let version_number: i32 = get(&row, "version_number")?;
    let timeline = if replica { Timeline::Told(0) } else { timeline(connection).await? };
    let slots_sql = match timeline {
        Timeline::Told(_) => SLOTS,
        Timeline::Hidden(_) => SLOTS_WITHOUT_LOG,
    };
    let collation = if version_number >= COLLATION_VERSION_MIN {
        stale(&rows(connection, None, COLLATION).await?)?
    } else {
        None
    };
    let lines = lines::<Postgres>(connection, schema).await?;
    let has_outbox = lines.iter().any(|line| line.line == "outbox" && line.version > 0);
    let mut id_sequence = None;
    let (mut topics, mut unlogged, mut other_outboxes) = (Vec::new(), Vec::new(), Vec::new());
    if has_outbox {
        unlogged = unlogged_tables(connection, schema).await?;
        other_outboxes = others(connection, schema).await?;
        id_sequence = rows(connection, schema, SEQUENCE).await?.first().map(sequence).transpose()?;
        // For a role that may not read the log, the check of grants reports it.
        topics = match rows(connection, schema, TOPICS).await {
            Ok(rows) => texts(&rows)?,
            Err(_) => Vec::new(),
        };
    }
    let host = options.get_host();
    let unsafe_settings = ["fsync", "full_page_writes", "synchronous_commit"]
        .into_iter()
        .map(|name| Ok((name, get::<String>(&row, name)?)))
        .filter(|setting| !matches!(setting, Ok((_, value)) if value != "off"))
        .collect::<Result<Vec<_>, Unreachable>>()?;
    let facts = PostgresFacts {
        version: get(&row, "version")?,
        version_number,
        replica,
        local: options.get_socket().is_some() || host.starts_with('/') || is_loopback(host),
        cipher: match get::<Option<bool>>(&row, "encrypted")? {
            Some(true) => Some(get::<Option<String>>(&row, "cipher")?.unwrap_or_else(|| String::from("TLS"))),
            _ => None,
        },
        verified: matches!(options.get_ssl_mode(), PgSslMode::VerifyFull | PgSslMode::VerifyCa),
        role: get(&row, "role_name")?,
        sees_sessions: get(&row, "sees_sessions")?,
        shared_session: shares_session(options, pid).await?,
        refused: None,
        lines,
        is_schema_named: schema.is_some(),
        other_outboxes,
        unlogged,
        id_sequence,
        timeline,
        encoding: get(&row, "encoding")?,
        stale_collation: collation,
        isolation: get(&row, "isolation")?,
        isolation_of_others: texts(&rows(connection, None, ISOLATION).await?)?,
        unsafe_settings,
        standby_names: get(&row, "standby_names")?,
        standbys: get(&row, "standbys")?,
        asynchronous: texts(&rows(connection, None, ASYNCHRONOUS).await?)?,
        transactions: transactions(&rows(connection, None, TRANSACTIONS).await?)?,
        prepared: prepared(&rows(connection, None, PREPARED).await?)?,
        // A replica does not report its log position.
        slots: if replica { Vec::new() } else { slots(&rows(connection, None, slots_sql).await?)? },
        clock: skew(get(&row, "clock")?, before, took),
        database_bytes: u64::try_from(get::<i64>(&row, "database_bytes")?).unwrap_or_default(),
    };
    Ok(Gathered { facts, topics })
}

/// Returns the outboxes of other schemas.
async fn others(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
) -> Result<Vec<OtherOutbox>, Unreachable> {
    let mut others = Vec::new();
    for row in rows(connection, schema, OUTBOXES).await? {
        let named: String = get(&row, "schema")?;
        let of = Identifier::new(&named).ok().filter(|_| get(&row, "may_read").unwrap_or(false));
        let mut is_unread = None;
        if let Some(of) = of {
            // A policy or a lock may keep this role out even so.
            let unread = rows(connection, Some(&of), UNREAD).await;
            is_unread = unread.ok().and_then(|rows| get(rows.first()?, "unread").ok());
        }
        others.push(OtherOutbox { schema: named, is_unread });
    }
    Ok(others)
}

/// Sets defaults that keep the session out of the business transactions, whatever the role's
/// defaults are.
pub(super) async fn settled(connection: &mut PgConnection) -> Result<(), Unreachable> {
    let setting = timeout(TIME_LIMIT, outbox::connect::set_own_defaults(connection));
    setting.await.map_err(|_| Unreachable::late())?.map_err(Unreachable::asking)
}

/// Queries the timeline; a refusal by the server is a result, not an error.
async fn timeline(connection: &mut PgConnection) -> Result<Timeline, Unreachable> {
    let asked = timeout(TIME_LIMIT, sqlx::raw_sql(TIMELINE).fetch_one(connection));
    match asked.await.map_err(|_| Unreachable::late())? {
        Ok(row) => Ok(Timeline::Told(get(&row, "timeline")?)),
        Err(sqlx::Error::Database(refused)) => Ok(Timeline::Hidden(refused.message().to_owned())),
        Err(error) => Err(Unreachable::asking(error)),
    }
}

/// Returns the recorded and the actual version of the collation, if they differ.
fn stale(rows: &[PgRow]) -> Result<Option<(String, String)>, Unreachable> {
    let Some(row) = rows.first() else { return Ok(None) };
    let recorded: Option<String> = get(row, "recorded")?;
    let actual: Option<String> = get(row, "actual")?;
    Ok(recorded.zip(actual).filter(|(recorded, actual)| recorded != actual))
}

/// Returns whether two connections get the same session of the server, because a pooler shares
/// sessions.
pub(in crate::doctor) async fn has_shared_sessions(
    url: &str,
    allow_plaintext: bool,
) -> Result<bool, Unreachable> {
    let hosts = Hosts::of(url, allow_plaintext).map_err(LogError::from)?;
    let Primary { mut connection, options } = primary(&hosts.application_name("relay check")).await?;
    let row = rows(&mut connection, None, "SELECT pg_backend_pid() AS pid").await?.into_iter().next();
    let pid: Option<i32> = row.map(|row| get(&row, "pid")).transpose()?;
    let shared_session = match pid {
        Some(pid) => shares_session(&options, pid).await?,
        None => false,
    };
    // A failure to close has no consequence.
    let _ = timeout(TIME_LIMIT, connection.close()).await;
    Ok(shared_session)
}

/// Returns whether a second connection gets the session of the first one, which is idle.
async fn shares_session(options: &PgConnectOptions, pid: i32) -> Result<bool, Unreachable> {
    let mut second = connect(&Hosts::from(options.clone())).await?;
    let row = rows(&mut second, None, "SELECT pg_backend_pid() AS pid").await?.into_iter().next();
    let other: Option<i32> = row.map(|row| get(&row, "pid")).transpose()?;
    let _ = timeout(TIME_LIMIT, second.close()).await;
    Ok(other == Some(pid))
}

/// Compares the server's clock with this machine's time halfway through the query.
fn skew(clock: f64, before: SystemTime, took: Duration) -> Skew {
    let middle = before.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    let by = Duration::try_from_secs_f64((clock - middle.as_secs_f64()).abs()).unwrap_or(Duration::MAX);
    Skew { by, uncertainty: took / 2 }
}

pub(super) fn get<'r, T>(row: &'r PgRow, name: &str) -> Result<T, Unreachable>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(name).map_err(Unreachable::asking)
}

fn first<'r, T>(row: &'r PgRow) -> Result<T, Unreachable>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(0).map_err(Unreachable::asking)
}

fn sequence(row: &PgRow) -> Result<IdSequence, Unreachable> {
    Ok(IdSequence {
        cache: get(row, "cache")?,
        increment: get(row, "increment")?,
        maximum: get(row, "maximum")?,
        cycles: get(row, "cycles")?,
        last: get(row, "last")?,
    })
}

fn texts(rows: &[PgRow]) -> Result<Vec<String>, Unreachable> {
    rows.iter().map(first).collect()
}

fn age(row: &PgRow) -> Result<Option<Duration>, Unreachable> {
    let seconds: Option<f64> = get(row, "seconds")?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)))
}

fn transactions(rows: &[PgRow]) -> Result<Vec<OpenTransaction>, Unreachable> {
    let read = |row: &PgRow| {
        Ok(OpenTransaction {
            pid: get(row, "pid")?,
            role: get(row, "role_name")?,
            application: get(row, "application")?,
            state: get(row, "state")?,
            age: age(row)?,
        })
    };
    rows.iter().map(read).collect()
}

fn prepared(rows: &[PgRow]) -> Result<Vec<PreparedTransaction>, Unreachable> {
    let read = |row: &PgRow| {
        let age = age(row)?.unwrap_or_default();
        Ok(PreparedTransaction { gid: get(row, "gid")?, role: get(row, "role_name")?, age })
    };
    rows.iter().map(read).collect()
}

fn slots(rows: &[PgRow]) -> Result<Vec<Slot>, Unreachable> {
    let count =
        |row: &PgRow, name| Ok::<_, Unreachable>(u64::try_from(get::<i64>(row, name)?).unwrap_or_default());
    let read = |row: &PgRow| {
        Ok(Slot {
            name: get(row, "slot")?,
            active: get(row, "active")?,
            log_bytes: count(row, "log_bytes")?,
            transactions: count(row, "transactions")?,
        })
    };
    rows.iter().map(read).collect()
}
