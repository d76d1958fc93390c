//! The history for the checker, read from the stores once nothing is in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use checker::{
    Consumer, Content, DeadLetter, Effect, History, InboxRow, Occurrence, OutboxRow, Parked, ParkedEntry,
    TopicRead,
};
use migrations::Template;
use migrations::query::{Column, Query, Row};
use outbox_log::entries::{EntryRef, Selection, Standing};
use outbox_log::{EntryId, RelayName};
use uuid::Uuid;

use crate::database::Database;
use crate::failure::Failure;
use crate::home::connection;
use crate::world::{RELAY, World, lock};

/// The consumers whose effects are checked, and the places of these effects.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Consumers with a recorded handler, and their topics.
    pub(crate) recorded: BTreeMap<String, BTreeSet<String>>,
    /// Consumers whose effects are read by a query.
    pub(crate) queries: Vec<EffectsQuery>,
    /// Inbox rows that were forgotten when the test advanced the time.
    pub(crate) expired: Vec<Remembered>,
}

/// A query that returns the message id of every effect.
#[derive(Debug, Clone)]
pub(crate) struct EffectsQuery {
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

impl<DB: Database> World<DB> {
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
        for EffectsQuery { consumer, topic, sql } in queries {
            let mut connection = connection(&self.pool).await?;
            let ids = DB::query_texts(&mut connection, sql).await;
            let ids = ids.map_err(Failure::during("read the effects of the service"))?;
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
        let sql =
            "SELECT CAST(message_id AS text) AS message_id, scope FROM inbox_dead_letter WHERE consumer = $1";
        let letters = self.read(sql, &[name], "read the dead letters").await?;
        let letter = |row: &Row<DB>| {
            let id: Option<String> = column(row, "message_id")?;
            let scope: String = column(row, "scope")?;
            Ok(DeadLetter { id: id.as_deref().map(uuid).transpose()?, scope: scope.into() })
        };
        Ok(Consumer {
            name: name.into(),
            topics: Some(topics.into_iter().map(Arc::from).collect()),
            ordered: self.broker.keeps_order(),
            inbox: of_this(remembered),
            expired: of_this(expired),
            effects: Some(effects),
            dead_letters: Some(letters.iter().map(letter).collect::<Result<_, Failure>>()?),
        })
    }

    pub(crate) async fn recorded_effects(&self, consumer: &str) -> Result<Vec<Effect>, Failure> {
        let sql =
            "SELECT scope, message_id, key, payload FROM testkit_effect WHERE consumer = $1 ORDER BY seq";
        let rows = self.read(sql, &[consumer], "read the recorded effects").await?;
        let effect = |row: &Row<DB>| {
            let scope: String = column(row, "scope")?;
            let id: String = column(row, "message_id")?;
            let key: Option<String> = column(row, "key")?;
            let payload: Vec<u8> = column(row, "payload")?;
            let content = Content::of(&key.unwrap_or_default(), &payload);
            Ok(Effect { id: uuid(&id)?, scope: scope.into(), content })
        };
        rows.iter().map(effect).collect()
    }

    pub(crate) async fn inbox_rows(&self) -> Result<Vec<Remembered>, Failure> {
        let sql = "SELECT consumer, CAST(message_id AS text) AS message_id, scope FROM inbox_message \
                   WHERE dead_letter IS NULL";
        let rows = self.read(sql, &[], "read the inbox").await?;
        let remembered = |row: &Row<DB>| {
            let id: String = column(row, "message_id")?;
            let scope: String = column(row, "scope")?;
            let consumer = column(row, "consumer")?;
            let row = InboxRow { id: uuid(&id)?, scope: scope.into(), content: Content::default() };
            Ok(Remembered { consumer, row })
        };
        rows.iter().map(remembered).collect()
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
        let sql = "SELECT CAST(message_id AS text) AS message_id, state FROM outbox_exception";
        let rows = self.read(sql, &[], "read the parked messages").await?;
        let parked = |row: &Row<DB>| {
            let id: String = column(row, "message_id")?;
            let state: String = column(row, "state")?;
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
        rows.iter().map(parked).collect()
    }

    /// Reads the outbox, and numbers the messages of each key where their order is known.
    async fn rows(&self) -> Result<Vec<OutboxRow>, Failure> {
        let rows = self.read(DB::OUTBOX, &[], "read the outbox").await?;
        let passed = self.passed().await?;
        let mut numbers: HashMap<String, u64> = HashMap::new();
        let mut outbox = Vec::with_capacity(rows.len());
        for row in &rows {
            let id = uuid(&column::<DB, String>(row, "message_id")?)?;
            let key: Option<String> = column(row, "key")?;
            let payload: Vec<u8> = column(row, "payload")?;
            let topic: String = column(row, "topic")?;
            let is_in_order: bool = column(row, "is_in_order")?;
            let content = Content::of(key.as_deref().unwrap_or_default(), &payload);
            let seq = key.filter(|_| is_in_order).map(|key| {
                let number = numbers.entry(key).or_default();
                *number += 1;
                *number
            });
            outbox.push(OutboxRow {
                id,
                position: column(row, "id")?,
                topic: Some(topic.into()),
                seq,
                out_of_turn: column(row, "is_scheduled")?,
                passed: passed.get(&id).copied(),
                content,
                ..OutboxRow::default()
            });
        }
        Ok(outbox)
    }

    /// Returns for each message of the outbox whether the relay's stored cursor has passed it.
    async fn passed(&self) -> Result<HashMap<Uuid, bool>, Failure> {
        let failed = "read the relay's progress";
        let relay = RelayName::new(RELAY).map_err(Failure::during("name the relay"))?;
        let extent = self.entries.extent(&relay).await.map_err(Failure::during(failed))?;
        let mut passed = HashMap::new();
        let mut after = EntryId(0);
        loop {
            let page = self.entries.select(&relay, &extent, &Selection::default(), after).await;
            let page = page.map_err(Failure::during(failed))?;
            for entry in page.entries {
                let is_passed = match entry.standing {
                    Standing::Waiting => false,
                    Standing::Published | Standing::Edited => true,
                    // Neither state shows where the cursor is.
                    Standing::Parked(_) | Standing::Discarded => {
                        let which = EntryRef::MessageId(entry.message_id);
                        let found = self.entries.find(&relay, which).await;
                        found.map_err(Failure::during(failed))?.iter().all(|found| found.is_passed)
                    }
                };
                passed.insert(entry.message_id, is_passed);
            }
            if page.exhausted {
                return Ok(passed);
            }
            after = page.seen_to;
        }
    }

    /// Runs a query of the kit with these values.
    pub(crate) async fn read(
        &self,
        sql: &'static str,
        values: &[&str],
        what: &'static str,
    ) -> Result<Vec<Row<DB>>, Failure> {
        let mut connection = connection(&self.pool).await?;
        let mut query = Query::<DB>::new(&Template::new(sql).render());
        for value in values {
            query = query.bind(*value);
        }
        query.rows(&mut connection).await.map_err(Failure::during(what))
    }
}

fn uuid(text: &str) -> Result<Uuid, Failure> {
    Uuid::parse_str(text).map_err(Failure::during("read a message id as text"))
}

/// Reads a column by its name.
pub(crate) fn column<DB: Database, T: Column>(row: &Row<DB>, name: &str) -> Result<T, Failure> {
    row.get(name).map_err(Failure::during("read a column"))
}
