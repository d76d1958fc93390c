//! The statements of producers, in SQLite.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use message::{Fingerprint, MessageId, Prepared, Stored, digest};
use migrations::{Backend as _, Identifier, SqlErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow};
use sqlx::{Connection as _, Executor, Row as _, Sqlite, SqliteConnection, SqlitePool};
use time::OffsetDateTime;

use crate::columns::ENQUEUED;
use crate::connect::{InvalidUrl, opened_when_free, sqlite_options};
use crate::dialect::{Dialect, Inserted, Requires, TransactionStatus};
use crate::nodes::HeldNumber;
use crate::pool_error::PoolError;
use crate::sqlite::clock::{ID_OF_NOW, NOW, micros};
use crate::sqlite::nodes;
use crate::transaction::UnknownCommit;

migrations::statements! {
    parts {
        now = NOW;
        id_of_now = ID_OF_NOW;
        into = "INSERT INTO outbox_message ({columns}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        columns = ENQUEUED;
    }

    append = "{into}";
    insert = "{into} ON CONFLICT (message_id) DO NOTHING";
    stored = "SELECT coalesce(kind, topic) AS kind, content_type, payload, topic, key, headers FROM outbox_message
        WHERE message_id = ?1";
    is_stored = "SELECT EXISTS (SELECT 1 FROM outbox_message WHERE message_id = ?1)";
    /// Whether retention may have removed the message ?1. Retention never records an id that is
    /// ahead of the clock.
    may_be_removed = "
        SELECT EXISTS (SELECT 1 FROM outbox_retention WHERE expired_through IS NOT NULL
            AND (?1 <= expired_through OR ?1 > {id_of_now}))";
    clock = "SELECT {now}";
}

/// Without a schema.
static SQL: LazyLock<Statements> = LazyLock::new(|| Statements::new(None));

async fn insert_one(connection: &mut SqliteConnection, prepared: &Prepared) -> Result<bool, sqlx::Error> {
    let message = &prepared.message;
    let headers = if message.headers.is_empty() {
        None
    } else {
        Some(serde_json::to_string(&message.headers).map_err(|error| sqlx::Error::Encode(Box::new(error)))?)
    };
    let done = sqlx::query(if prepared.is_supplied { &SQL.insert } else { &SQL.append })
        .bind(message.id.to_string())
        .bind(message.topic.as_str())
        .bind(message.key.as_ref().map(AsRef::<str>::as_ref))
        .bind(message.kind.as_str())
        .bind(message.content_type.as_str())
        .bind(headers)
        .bind(message.trace.as_ref().map(|trace| trace.parent()))
        .bind(message.trace.as_ref().and_then(|trace| trace.state()))
        .bind(&message.payload[..])
        .bind(prepared.deliver_at.map(micros))
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Reads the parts of a stored message that identify it.
fn read_stored(id: MessageId, row: &SqliteRow) -> Result<Stored, sqlx::Error> {
    let kind: String = row.try_get("kind")?;
    let content_type: String = row.try_get("content_type")?;
    let payload: &[u8] = row.try_get("payload")?;
    let headers: Option<String> = row.try_get("headers")?;
    // A row of plain SQL may have other values than texts, which no message has.
    let values: BTreeMap<String, serde_json::Value> = match headers {
        Some(headers) => {
            serde_json::from_str(&headers).map_err(|error| sqlx::Error::Decode(Box::new(error)))?
        }
        None => BTreeMap::new(),
    };
    let digests = values.into_iter().map(|(name, value)| {
        let digest = match value.as_str() {
            Some(text) => digest(&name, text),
            None => digest(&name, &value.to_string()),
        };
        (name, digest)
    });
    Ok(Stored {
        id,
        fingerprint: Fingerprint::of_parts(&kind, &content_type, payload),
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        headers: digests.collect(),
    })
}

impl Dialect for Sqlite {
    type ProducerStatements = ();

    fn producer_statements(_: Option<&Identifier>) {}

    /// Runs one statement per message: in process, a round trip costs nothing.
    async fn insert_messages(
        connection: &mut SqliteConnection,
        (): &(),
        messages: &[&Prepared],
        requires: Requires,
    ) -> Result<Inserted, sqlx::Error> {
        let mut inserted = Inserted::default();
        if requires == Requires::Mark && !Self::is_marked(connection).await? {
            return Ok(inserted);
        }
        for prepared in messages {
            if insert_one(connection, prepared).await? {
                inserted.ids.push(prepared.message.id);
            }
        }
        Ok(inserted)
    }

    async fn stored(
        connection: &mut SqliteConnection,
        (): &(),
        ids: &[MessageId],
    ) -> Result<Vec<Stored>, sqlx::Error> {
        let mut stored = Vec::new();
        for id in ids {
            let row = sqlx::query(&SQL.stored).bind(id.to_string()).fetch_optional(&mut *connection).await?;
            stored.extend(row.map(|row| read_stored(*id, &row)).transpose()?);
        }
        Ok(stored)
    }

    async fn now(connection: &mut SqliteConnection) -> Result<OffsetDateTime, sqlx::Error> {
        let micros: i64 = sqlx::query_scalar(&SQL.clock).fetch_one(connection).await?;
        Ok(OffsetDateTime::UNIX_EPOCH + time::Duration::microseconds(micros))
    }

    /// Waits for the write lock, which a running transaction would hold.
    async fn fate(
        connection: &mut SqliteConnection,
        (): &(),
        commit: &UnknownCommit,
    ) -> Result<TransactionStatus, sqlx::Error> {
        match connection.execute("BEGIN IMMEDIATE; ROLLBACK").await {
            Err(error) if SqlErrorKind::of(&error) == SqlErrorKind::Conflict => {
                return Ok(TransactionStatus::Running);
            }
            done => done?,
        };
        for id in &commit.message_ids {
            let id = id.to_string();
            if sqlx::query_scalar(&SQL.is_stored).bind(&id).fetch_one(&mut *connection).await? {
                return Ok(TransactionStatus::Committed);
            }
        }
        for id in &commit.message_ids {
            let id = id.to_string();
            if sqlx::query_scalar(&SQL.may_be_removed).bind(&id).fetch_one(&mut *connection).await? {
                return Ok(TransactionStatus::Unclear);
            }
        }
        Ok(TransactionStatus::RolledBack)
    }

    async fn take_node(
        connection: &mut SqliteConnection,
        (): &(),
        holder: &str,
        lease: Duration,
    ) -> Result<Option<HeldNumber>, sqlx::Error> {
        nodes::take(connection, holder, lease).await
    }

    async fn renew_node(
        connection: &mut SqliteConnection,
        (): &(),
        held: &HeldNumber,
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        nodes::renew(connection, held, lease).await
    }

    async fn release_node(
        connection: &mut SqliteConnection,
        (): &(),
        held: &HeldNumber,
    ) -> Result<bool, sqlx::Error> {
        nodes::release(connection, held).await
    }

    fn options(url: &str, _: bool) -> Result<SqliteConnectOptions, InvalidUrl> {
        sqlite_options(url)
    }

    async fn open_pool(
        url: &str,
        idle_in_transaction_max: Duration,
        adjust: impl FnOnce(SqlitePoolOptions) -> SqlitePoolOptions + Send,
    ) -> Result<SqlitePool, PoolError> {
        let options = sqlite_options(url)?;
        let pool = adjust(Self::pool_options(idle_in_transaction_max));
        let opened = opened_when_free(|| pool.clone().connect_with(options.clone())).await;
        opened.map_err(|error| PoolError::Connect(Box::new(error)))
    }

    fn pool_options(_: Duration) -> SqlitePoolOptions {
        SqlitePoolOptions::new().after_release(|connection, _| {
            Box::pin(async move {
                // Fails inside a transaction that a cancelled begin() has left open, and the pool
                // then closes the connection.
                connection.execute("BEGIN; ROLLBACK").await?;
                // SQLite ends a transaction automatically when the disk is full. The client does
                // not notice, and could never begin another one.
                Ok(!connection.is_in_transaction())
            })
        })
    }
}
