//! Reads both databases with plain SQL, which is the same for both except for their types.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[cfg(feature = "postgres")]
use checker::LeaseEvent;
use checker::{BusinessRow, Consumer, DeadLetter, Digest, Effect, InboxRow, OutboxRow, Parked, ParkedEntry};
use futures_util::TryStreamExt as _;
use migrations::Dialect;
#[cfg(feature = "postgres")]
use sqlx::PgConnection;
use sqlx::{Connection as _, Row as _, SqliteConnection};
use uuid::Uuid;

use crate::Failure;
use crate::content::content;
use crate::payload::Payload;

/// A plain connection to one of the databases.
#[derive(Debug)]
pub enum Plain {
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    /// SQLite.
    Sqlite(SqliteConnection),
}

impl Plain {
    /// Connects.
    ///
    /// # Errors
    /// The URL belongs to no known database, or the database does not answer.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        Ok(match outbox::connect::dialect_of(url)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Self::Postgres(PgConnection::connect(url).await?),
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => return Err("this program was built without PostgreSQL".into()),
            Dialect::Sqlite => {
                Self::Sqlite(SqliteConnection::connect_with(&outbox::connect::sqlite_options(url)?).await?)
            }
        })
    }

    fn is_sqlite(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => false,
            Self::Sqlite(_) => true,
        }
    }
}

/// Runs the same statements on either connection.
macro_rules! on {
    ($plain:expr, $connection:ident => $body:expr) => {
        match $plain {
            #[cfg(feature = "postgres")]
            Plain::Postgres($connection) => $body,
            Plain::Sqlite($connection) => $body,
        }
    };
}

const UUID: &str = "a message id in the database is not a UUID";

impl Plain {
    /// Reads the business rows. `payload` returns the digest of the message's payload from a row's
    /// name, account, number and cents, if the payload follows from them.
    ///
    /// # Errors
    /// The query fails, or a row cannot be valid.
    pub async fn business(
        &mut self,
        payload: impl Fn(&str, &str, u64, u64) -> Option<Digest>,
    ) -> Result<Vec<BusinessRow>, Failure> {
        let sql = "SELECT row, account, number, cents FROM business";
        let rows: Vec<(String, String, i64, i64)> = on!(self, c => sqlx::query_as(sql).fetch_all(c).await?);
        let row = |(row, account, number, cents): (String, String, i64, i64)| {
            let payload = payload(&row, &account, number.unsigned_abs(), cents.unsigned_abs());
            BusinessRow { id: row.into(), messages: Some(1), payload }
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Reads the outbox.
    ///
    /// # Errors
    /// The query fails, or a row cannot be valid.
    pub async fn outbox(&mut self) -> Result<Vec<OutboxRow>, Failure> {
        let postgres = "SELECT id, CAST(message_id AS text) AS message_id, topic, key, payload, \
                        CAST(headers AS text) AS headers, \
                        CAST(extract(epoch FROM deliver_at) * 1000 AS bigint) AS due FROM outbox_message ORDER BY id";
        let sqlite = "SELECT id, message_id, topic, key, payload, headers, deliver_at / 1000 AS due \
                      FROM outbox_message ORDER BY id";
        let sql = if self.is_sqlite() { sqlite } else { postgres };
        let mut rows = Vec::new();
        on!(self, c => {
            let mut found = sqlx::query(sql).fetch(c);
            while let Some(row) = found.try_next().await? {
                let (payload, headers): (Vec<u8>, Option<String>) = (row.try_get("payload")?, row.try_get("headers")?);
                let (id, key): (String, Option<String>) = (row.try_get("message_id")?, row.try_get("key")?);
                let topic: String = row.try_get("topic")?;
                let due: Option<i64> = row.try_get("due")?;
                let read = outbox_row(row.try_get("id")?, &id, topic, key.as_deref(), &payload, headers)?;
                rows.push(OutboxRow { due, ..read });
            }
        });
        Ok(rows)
    }

    /// Reads the parked entries.
    ///
    /// # Errors
    /// The query fails, or a row cannot be valid.
    pub async fn parked(&mut self) -> Result<Vec<Parked>, Failure> {
        let sql = "SELECT CAST(message_id AS text), state FROM outbox_exception";
        let rows: Vec<(String, String)> = on!(self, c => sqlx::query_as(sql).fetch_all(c).await?);
        let parked = |(id, state): (String, String)| -> Result<Parked, Failure> {
            let state = match state.as_str() {
                "scheduled" => ParkedEntry::Scheduled,
                "retrying" => ParkedEntry::Retrying,
                "held" => ParkedEntry::Held,
                "dead" => ParkedEntry::Dead,
                "discarded" => ParkedEntry::Discarded,
                other => return Err(format!("an exception in state {other:?}").into()),
            };
            Ok(Parked { id: Uuid::parse_str(&id).map_err(|_| UUID)?, state })
        };
        rows.into_iter().map(parked).collect()
    }

    /// Reads the inbox, the effects and the dead letters of a consumer.
    ///
    /// # Errors
    /// The query fails, or a row cannot be valid.
    pub async fn consumer(&mut self, name: &str, dead_lettered_by: &str) -> Result<Consumer, Failure> {
        Ok(Consumer {
            name: name.into(),
            inbox: Some(self.inbox(name).await?),
            effects: Some(self.effects(name).await?),
            dead_letters: Some(self.dead_letters(dead_lettered_by).await?),
            ..Consumer::default()
        })
    }

    async fn inbox(&mut self, name: &str) -> Result<Vec<InboxRow>, Failure> {
        let sql = "SELECT CAST(message_id AS text), scope FROM inbox_message \
                   WHERE consumer = $1 AND dead_letter IS NULL";
        let rows: Vec<(String, String)> = on!(self, c => sqlx::query_as(sql).bind(name).fetch_all(c).await?);
        let mut scopes = Scopes::default();
        let row = |(id, scope): (String, String)| -> Result<InboxRow, Failure> {
            let id = Uuid::parse_str(&id).map_err(|_| UUID)?;
            Ok(InboxRow { id, scope: scopes.of(scope), ..InboxRow::default() })
        };
        rows.into_iter().map(row).collect()
    }

    async fn effects(&mut self, name: &str) -> Result<Vec<Effect>, Failure> {
        let sql =
            "SELECT message_id, scope, key, payload, headers FROM effect WHERE consumer = $1 ORDER BY place";
        let rows: Vec<(String, String, String, String, String)> =
            on!(self, c => sqlx::query_as(sql).bind(name).fetch_all(c).await?);
        let mut scopes = Scopes::default();
        let mut keys = Scopes::default();
        let digest = |text: String| serde_json::from_value::<Digest>(text.into());
        let effect = |(id, scope, key, payload, headers): (_, _, _, _, _)| -> Result<Effect, Failure> {
            let id: String = id;
            let content = checker::Content {
                key: Some(keys.of(key)),
                payload: Some(digest(payload)?),
                headers: Some(digest(headers)?),
                fingerprint: None,
            };
            Ok(Effect { id: Uuid::parse_str(&id).map_err(|_| UUID)?, scope: scopes.of(scope), content })
        };
        rows.into_iter().map(effect).collect()
    }

    async fn dead_letters(&mut self, name: &str) -> Result<Vec<DeadLetter>, Failure> {
        let sql = "SELECT CAST(message_id AS text), scope FROM inbox_dead_letter \
                   WHERE consumer = $1 AND resolution IS NULL";
        let rows: Vec<(Option<String>, String)> =
            on!(self, c => sqlx::query_as(sql).bind(name).fetch_all(c).await?);
        let letter = |(id, scope): (Option<String>, String)| -> Result<DeadLetter, Failure> {
            let id = id.map(|id| Uuid::parse_str(&id)).transpose().map_err(|_| UUID)?;
            Ok(DeadLetter { id, scope: scope.into() })
        };
        rows.into_iter().map(letter).collect()
    }

    /// Reads the changes of the holders of leases. Only PostgreSQL records them.
    ///
    /// # Errors
    /// The query fails.
    #[cfg(feature = "postgres")]
    pub async fn leases(&mut self) -> Result<Option<Vec<LeaseEvent>>, Failure> {
        let Self::Postgres(connection) = self else { return Ok(None) };
        let sql = "SELECT session, relay, before, epoch, holder, moved FROM lease_change ORDER BY place";
        let rows: Vec<LeaseChange> = sqlx::query_as(sql).fetch_all(connection).await?;
        let mut under: HashMap<i64, (u64, Arc<str>)> = HashMap::new();
        let mut events = Vec::new();
        for (session, relay, before, epoch, holder, moved) in rows {
            let (lease, epoch): (Arc<str>, _) = (relay.into(), epoch.unsigned_abs());
            if before.map(i64::unsigned_abs) != Some(epoch) {
                let holder: Arc<str> = holder.unwrap_or_default().into();
                under.insert(session, (epoch, Arc::clone(&holder)));
                events.push(LeaseEvent::Granted { lease, epoch, holder });
            } else {
                // A session that never acquired the lease has no epoch.
                let (epoch, holder) = under.get(&session).cloned().unwrap_or((0, "nobody".into()));
                let what = if moved { "checkpoint" } else { "renewal or release" };
                events.push(LeaseEvent::Wrote { lease, epoch, holder, applied: true, what: what.into() });
            }
        }
        Ok(Some(events))
    }

    /// Reads the messages in the outbox that are not parked.
    pub async fn left(&mut self) -> Result<HashSet<String>, Failure> {
        // This is not an anti-join, because the ids of parked entries have no index.
        let sql = "SELECT CAST(message_id AS text) FROM outbox_message EXCEPT \
                   SELECT CAST(message_id AS text) FROM outbox_exception";
        self.ids(sql, []).await
    }

    /// Counts the parked entries that will be published automatically: scheduled, retrying, and
    /// held without a dead entry of their key. Entries for the topic that does not exist are not
    /// counted.
    pub async fn moving(&mut self, nowhere: &str) -> Result<[u64; 3], Failure> {
        let sql = "SELECT count(CASE WHEN state = 'scheduled' THEN 1 END), \
                   count(CASE WHEN state = 'retrying' THEN 1 END), \
                   count(CASE WHEN state = 'held' AND (key IS NULL OR key NOT IN (SELECT key FROM outbox_exception \
                   WHERE state = 'dead' AND key IS NOT NULL)) THEN 1 END) \
                   FROM outbox_exception WHERE topic <> $1";
        let (scheduled, retrying, held): (i64, i64, i64) =
            on!(self, c => sqlx::query_as(sql).bind(nowhere).fetch_one(c).await?);
        Ok([scheduled, retrying, held].map(i64::unsigned_abs))
    }

    /// Reads the messages that a consumer has decided.
    pub async fn decided(&mut self, name: &str, dead_lettered_by: &str) -> Result<HashSet<String>, Failure> {
        let sql = "SELECT message_id FROM effect WHERE consumer = $1 UNION \
                   SELECT CAST(message_id AS text) FROM inbox_dead_letter WHERE consumer = $2 AND message_id IS NOT NULL";
        self.ids(sql, [name, dead_lettered_by]).await
    }

    async fn ids<const N: usize>(
        &mut self,
        sql: &'static str,
        bound: [&str; N],
    ) -> Result<HashSet<String>, Failure> {
        let ids: Vec<String> = on!(self, c => {
            let mut query = sqlx::query_scalar(sql);
            for value in bound {
                query = query.bind(value.to_owned());
            }
            query.fetch_all(c).await?
        });
        Ok(ids.into_iter().collect())
    }

    /// Reads sessions of this database that are in a transaction, and prepared transactions.
    ///
    /// # Errors
    /// The query fails.
    #[cfg(feature = "postgres")]
    pub async fn open_transactions(&mut self) -> Result<Vec<String>, Failure> {
        let Self::Postgres(connection) = self else { return Ok(Vec::new()) };
        let sql = "SELECT format('session %s of %s in a transaction: %s', pid, datname, left(query, 80)) \
                   FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                   AND xact_start IS NOT NULL AND backend_type = 'client backend' UNION ALL \
                   SELECT format('prepared transaction %s', gid) FROM pg_prepared_xacts \
                   WHERE database = current_database()";
        Ok(sqlx::query_scalar(sql).fetch_all(connection).await?)
    }

    /// Reads the holders of leases.
    pub async fn holders(&mut self) -> Result<Vec<String>, Failure> {
        let sql = "SELECT holder FROM outbox_relay WHERE holder IS NOT NULL";
        Ok(on!(self, c => sqlx::query_scalar(sql).fetch_all(c).await?))
    }

    /// Reads the incomplete messages, except those with a dead letter. If such a message is
    /// delivered again, its chunks stay until they expire.
    pub async fn incomplete(&mut self) -> Result<Vec<(Uuid, String)>, Failure> {
        let sql = "SELECT CAST(s.message_id AS text), \
                   s.consumer || ' has chunks of ' || s.topic || ' ' || \
                   CAST(s.message_id AS text) || ' since ' || s.begun_at \
                   FROM inbox_chunk_set AS s WHERE NOT EXISTS (SELECT 1 FROM inbox_dead_letter AS d \
                   WHERE d.subject = s.message_id AND d.consumer = s.consumer AND d.scope = s.scope \
                   AND d.fingerprint = s.fingerprint)";
        let sets: Vec<(String, String)> = on!(self, c => sqlx::query_as(sql).fetch_all(c).await?);
        let set = |(id, what): (String, String)| Ok((Uuid::parse_str(&id).map_err(|_| UUID)?, what));
        sets.into_iter().map(set).collect()
    }
}

/// Session, relay, previous epoch, epoch, holder, and whether the cursor moved.
#[cfg(feature = "postgres")]
type LeaseChange = (i64, String, Option<i64>, i64, Option<String>, bool);

/// Interned texts, because few texts occur in many rows.
#[derive(Default)]
struct Scopes(HashMap<String, Arc<str>>);

impl Scopes {
    fn of(&mut self, text: String) -> Arc<str> {
        Arc::clone(self.0.entry(text).or_insert_with_key(|text| text.as_str().into()))
    }
}

fn outbox_row(
    position: i64,
    id: &str,
    topic: String,
    key: Option<&str>,
    payload: &[u8],
    headers: Option<String>,
) -> Result<OutboxRow, Failure> {
    let headers: HashMap<String, String> = match &headers {
        Some(headers) => serde_json::from_str(headers)?,
        None => HashMap::new(),
    };
    let own: Option<Payload> = serde_json::from_slice(payload).ok();
    Ok(OutboxRow {
        id: Uuid::parse_str(id).map_err(|_| UUID)?,
        position,
        topic: Some(topic.into()),
        row: own.as_ref().map(|own| own.row.as_str().into()),
        seq: own.as_ref().map(|own| own.seq),
        out_of_turn: own.is_some_and(|own| own.late),
        content: content(key, payload, headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
        ..OutboxRow::default()
    })
}
