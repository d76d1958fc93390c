//! The history for the checker, read from the stores once nothing is in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use checker::{
    Consumer, Content, DeadLetter, Effect, History, InboxRow, Occurrence, OutboxRow, Parked, ParkedEntry,
    TopicRead,
};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use crate::failure::Failure;
use crate::world::{RELAY, World, lock};

/// The consumers whose effects are checked, and the places of these effects.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Consumers with a recorded handler, and their topics.
    pub(crate) recorded: BTreeMap<String, BTreeSet<String>>,
    /// Consumers whose effects are read by a query.
    pub(crate) queries: Vec<Query>,
    /// Inbox rows that were forgotten when the test advanced the time.
    pub(crate) expired: Vec<Remembered>,
}

/// A query that returns the message id of every effect.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) consumer: String,
    pub(crate) topic: String,
    pub(crate) sql: &'static str,
}

/// An inbox row and its consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembered {
    consumer: String,
    row: InboxRow,
}

impl Watched {
    /// Whether no consumer is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.queries.is_empty()
    }
}

impl World {
    /// Returns everything that this world has observed. Call [`World::quiet`] first, which waits
    /// until nothing is in flight.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn history(&self) -> Result<History, Failure> {
        // Downstream parts come first, as the checker requires.
        let consumers = self.consumers().await?;
        let topic_read = self.topic_read();
        let parked = self.exceptions().await?;
        let outbox = self.rows().await?;
        Ok(History {
            quiet: true,
            outbox: Some(outbox),
            parked: Some(parked),
            topic_read: Some(topic_read),
            consumers,
            ..History::default()
        })
    }

    async fn consumers(&self) -> Result<Vec<Consumer>, Failure> {
        let (recorded, queries, expired) = {
            let watched = lock(&self.watched);
            (watched.recorded.clone(), watched.queries.clone(), watched.expired.clone())
        };
        let remembered = self.inbox_rows().await?;
        let mut consumers = Vec::new();
        for (name, topics) in recorded {
            let effects = self.recorded_effects(&name).await?;
            consumers.push(self.consumer_of(&name, topics, effects, &remembered, &expired).await?);
        }
        for Query { consumer, topic, sql } in queries {
            let ids: Vec<String> = sqlx::query_scalar(sql)
                .fetch_all(&self.pool)
                .await
                .map_err(Failure::during("read the effects of the service"))?;
            let effect = |text: String| Ok(Effect { id: uuid(&text)?, ..Effect::default() });
            let effects = ids.into_iter().map(effect).collect::<Result<_, Failure>>()?;
            consumers
                .push(self.consumer_of(&consumer, [topic].into(), effects, &remembered, &expired).await?);
        }
        Ok(consumers)
    }

    async fn consumer_of(
        &self,
        name: &str,
        topics: BTreeSet<String>,
        effects: Vec<Effect>,
        remembered: &[Remembered],
        expired: &[Remembered],
    ) -> Result<Consumer, Failure> {
        let of_this = |rows: &[Remembered]| {
            Some(rows.iter().filter(|row| row.consumer == name).map(|row| row.row.clone()).collect())
        };
        let letters: Vec<(Option<String>, String)> =
            sqlx::query_as("SELECT message_id, scope FROM inbox_dead_letter WHERE consumer = $1")
                .bind(name)
                .fetch_all(&self.pool)
                .await
                .map_err(Failure::during("read the dead letters"))?;
        let letter = |(id, scope): (Option<String>, String)| {
            Ok(DeadLetter { id: id.as_deref().map(uuid).transpose()?, scope: scope.into() })
        };
        Ok(Consumer {
            name: name.into(),
            topics: Some(topics.into_iter().map(Arc::from).collect()),
            ordered: self.broker.keeps_order(),
            inbox: of_this(remembered),
            expired: of_this(expired),
            effects: Some(effects),
            dead_letters: Some(letters.into_iter().map(letter).collect::<Result<_, Failure>>()?),
        })
    }

    pub(crate) async fn recorded_effects(&self, consumer: &str) -> Result<Vec<Effect>, Failure> {
        let rows: Vec<(String, String, Option<String>, Vec<u8>)> = sqlx::query_as(
            "SELECT scope, message_id, key, payload FROM testkit_effect WHERE consumer = $1 ORDER BY seq",
        )
        .bind(consumer)
        .fetch_all(&self.pool)
        .await
        .map_err(Failure::during("read the recorded effects"))?;
        let effect = |(scope, id, key, payload): (String, String, Option<String>, Vec<u8>)| {
            let content = Content::of(&key.unwrap_or_default(), &payload);
            Ok(Effect { id: uuid(&id)?, scope: scope.into(), content })
        };
        rows.into_iter().map(effect).collect()
    }

    pub(crate) async fn inbox_rows(&self) -> Result<Vec<Remembered>, Failure> {
        let rows: Vec<(String, String, String)> =
            sqlx::query_as("SELECT consumer, message_id, scope FROM inbox_message WHERE dead_letter IS NULL")
                .fetch_all(&self.pool)
                .await
                .map_err(Failure::during("read the inbox"))?;
        let remembered = |(consumer, id, scope): (String, String, String)| {
            let row = InboxRow { id: uuid(&id)?, scope: scope.into(), content: Content::default() };
            Ok(Remembered { consumer, row })
        };
        rows.into_iter().map(remembered).collect()
    }

    fn topic_read(&self) -> TopicRead {
        let mut occurrences = Vec::new();
        for topic in self.broker.topics() {
            let place: Arc<str> = topic.as_str().into();
            occurrences.extend(self.broker.log(&topic).into_iter().map(|message| Occurrence {
                id: Some(message.id.as_uuid()),
                place: Arc::clone(&place),
                content: Content::of(message.key.as_ref().map_or("", |key| key.as_str()), &message.payload),
            }));
        }
        TopicRead { ordered: true, complete: true, occurrences }
    }

    async fn exceptions(&self) -> Result<Vec<Parked>, Failure> {
        let rows: Vec<(String, String)> = sqlx::query_as("SELECT message_id, state FROM outbox_exception")
            .fetch_all(&self.pool)
            .await
            .map_err(Failure::during("read what is parked"))?;
        let parked = |(id, state): (String, String)| {
            let state = match state.as_str() {
                "scheduled" => ParkedEntry::Scheduled,
                "retrying" => ParkedEntry::Retrying,
                "held" => ParkedEntry::Held,
                "dead" => ParkedEntry::Dead,
                "discarded" => ParkedEntry::Discarded,
                other => return Err(Failure::new(format!("a message is parked as {other:?}"))),
            };
            Ok(Parked { id: uuid(&id)?, state })
        };
        rows.into_iter().map(parked).collect()
    }

    /// Reads the outbox. With one writer at a time, ids ascend in the order of commits, so they
    /// number the messages of each key.
    async fn rows(&self) -> Result<Vec<OutboxRow>, Failure> {
        let passed: i64 = sqlx::query_scalar(
            "SELECT coalesce(max(max(CAST(json_extract(cursor, '$.base') AS INTEGER), \
             coalesce(json_extract(cursor, '$.progress.after'), 0))), 0) FROM outbox_relay WHERE relay = $1",
        )
        .bind(RELAY)
        .fetch_one(&self.pool)
        .await
        .map_err(Failure::during("read the relay's cursor"))?;
        let rows: Vec<SqliteRow> = sqlx::query(
            "SELECT id, message_id, topic, key, payload, deliver_at FROM outbox_message ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(Failure::during("read the outbox"))?;
        let mut numbers: HashMap<String, u64> = HashMap::new();
        let mut outbox = Vec::with_capacity(rows.len());
        for row in rows {
            let (position, key): (i64, Option<String>) = (column(&row, "id")?, column(&row, "key")?);
            let payload: Vec<u8> = column(&row, "payload")?;
            let content = Content::of(key.as_deref().unwrap_or_default(), &payload);
            let seq = key.map(|key| {
                let number = numbers.entry(key).or_default();
                *number += 1;
                *number
            });
            outbox.push(OutboxRow {
                id: uuid(&column::<String>(&row, "message_id")?)?,
                position,
                topic: Some(column::<String>(&row, "topic")?.into()),
                seq,
                out_of_turn: column::<Option<i64>>(&row, "deliver_at")?.is_some(),
                passed: Some(position <= passed),
                content,
                ..OutboxRow::default()
            });
        }
        Ok(outbox)
    }
}

fn uuid(text: &str) -> Result<Uuid, Failure> {
    Uuid::parse_str(text).map_err(Failure::during("read a message id as text"))
}

fn column<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
    row: &'r SqliteRow,
    name: &str,
) -> Result<T, Failure> {
    row.try_get(name).map_err(Failure::during("read a column of the outbox"))
}
