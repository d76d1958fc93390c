//! Reads the messages that a consumer remembers from SQLite, in the order of their ids.

use async_trait::async_trait;
use migrations::{Line, MigrateError, Migrator};
use sqlx::{Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::values::{fingerprint, text, time};
use crate::reconcile::{AppliedIds, Remembered, Unfinished, Whose};
use crate::store_error::StoreError;

// ?1 consumer, ?2 scope or null.
const PAGE: &str = "SELECT message_id, scope, fingerprint FROM inbox_message \
    WHERE dead_letter IS NULL AND consumer = ?1 AND (?2 IS NULL OR scope = ?2) AND message_id >= ?3 \
    AND (message_id, scope) > (?3, ?4) AND message_id <= ?5 ORDER BY message_id, scope LIMIT ?6";
const FIND: &str = "SELECT message_id, scope, fingerprint FROM inbox_message \
    WHERE dead_letter IS NULL AND consumer = ?1 AND (?2 IS NULL OR scope = ?2) AND message_id IN (SELECT value FROM json_each(?3))";
const UNFINISHED: &str = "SELECT message_id, NULL FROM inbox_attempt \
    WHERE consumer = ?1 AND (?2 IS NULL OR scope = ?2) AND message_id IN (SELECT value FROM json_each(?3)) \
    UNION SELECT subject, resolution IS NULL FROM inbox_dead_letter \
    WHERE consumer = ?1 AND (?2 IS NULL OR scope = ?2) AND subject IN (SELECT value FROM json_each(?3))";
const RETAINED: &str = "SELECT retained_from FROM inbox_retention";

/// The [`AppliedIds`] of SQLite.
pub(crate) struct SqliteMemory {
    connection: SqliteConnection,
    whose: Whose,
}

impl SqliteMemory {
    pub(crate) async fn open(mut connection: SqliteConnection, whose: Whose) -> Result<Self, MigrateError> {
        Migrator::<Sqlite>::new(Line::Inbox).check(&mut connection).await?;
        Ok(Self { connection, whose })
    }

    fn scope(&self) -> Option<String> {
        self.whose.scope.as_ref().map(|scope| scope.as_str().to_owned())
    }
}

fn json(ids: &[Uuid]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| text(*id).to_string()).collect();
    serde_json::Value::from(ids).to_string()
}

type RememberedTuple = (Hyphenated, String, Vec<u8>);

fn remembered((id, scope, bytes): RememberedTuple) -> Result<Remembered, sqlx::Error> {
    Ok(Remembered { id: id.into_uuid(), scope, fingerprint: fingerprint(&bytes)? })
}

#[async_trait]
impl AppliedIds for SqliteMemory {
    async fn page(
        &mut self,
        after: (Uuid, &str),
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError> {
        let rows: Vec<RememberedTuple> = sqlx::query_as(PAGE)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(self.scope())
            .bind(text(after.0))
            .bind(after.1)
            .bind(text(until))
            .bind(i64::from(rows_max))
            .fetch_all(&mut self.connection)
            .await
            .map_err(StoreError::during("read the inbox"))?;
        let rows = rows.into_iter().map(remembered).collect::<Result<_, _>>();
        rows.map_err(StoreError::during("read the inbox"))
    }

    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError> {
        let rows: Vec<RememberedTuple> = sqlx::query_as(FIND)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(self.scope())
            .bind(json(ids))
            .fetch_all(&mut self.connection)
            .await
            .map_err(StoreError::during("look up messages in the inbox"))?;
        let rows = rows.into_iter().map(remembered).collect::<Result<_, _>>();
        rows.map_err(StoreError::during("look up messages in the inbox"))
    }

    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError> {
        let rows: Vec<(Hyphenated, Option<bool>)> = sqlx::query_as(UNFINISHED)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(self.scope())
            .bind(json(ids))
            .fetch_all(&mut self.connection)
            .await
            .map_err(StoreError::during("find attempts and dead letters"))?;
        Ok(rows.into_iter().map(|(id, is_open)| (id.into_uuid(), Unfinished::of(is_open))).collect())
    }

    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError> {
        let found: Option<i64> = sqlx::query_scalar(RETAINED)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(StoreError::during("read from when the inbox remembers ids"))?;
        found.map(time).transpose().map_err(StoreError::during("read from when the inbox remembers ids"))
    }
}
