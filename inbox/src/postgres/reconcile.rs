//! The messages that a consumer remembers, in the order of their ids, read from PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use message::Fingerprint;
use migrations::{Identifier, Line, MigrateError, Migrator, Statement, Template};
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::reconcile::{AppliedIds, Remembered, Unfinished, Whose};
use crate::store_error::StoreError;

// $1 consumer, $2 scope or null. The first bound lets the planner begin inside the primary key,
// which returns the rows of one consumer in order.
const PAGE: &str = "SELECT message_id, scope, fingerprint FROM {schema}inbox_message \
    WHERE dead_letter IS NULL AND consumer = $1 AND ($2::text IS NULL OR scope = $2) AND message_id >= $3 \
    AND (message_id, scope) > ($3, $4) AND message_id <= $5 ORDER BY message_id, scope LIMIT $6";
const FIND: &str = "SELECT message_id, scope, fingerprint FROM {schema}inbox_message \
    WHERE dead_letter IS NULL AND consumer = $1 AND ($2::text IS NULL OR scope = $2) AND message_id = ANY ($3)";
// By the index of ids, whatever the planner believes: consumer and scope are looked at afterwards.
const UNFINISHED: &str = "SELECT a.message_id, NULL::boolean FROM UNNEST($3::uuid[]) AS u (id) \
    CROSS JOIN LATERAL (SELECT k.message_id, k.consumer, k.scope \
    FROM {schema}inbox_attempt AS k WHERE k.message_id = u.id OFFSET 0) AS a \
    WHERE a.consumer = $1 AND ($2::text IS NULL OR a.scope = $2) \
    UNION SELECT d.subject, d.resolution IS NULL FROM UNNEST($3::uuid[]) AS u (id) \
    CROSS JOIN LATERAL (SELECT k.subject, k.resolution, k.consumer, k.scope \
    FROM {schema}inbox_dead_letter AS k WHERE k.subject = u.id OFFSET 0) AS d \
    WHERE d.consumer = $1 AND ($2::text IS NULL OR d.scope = $2)";
const RETAINED: &str = "SELECT retained_from FROM {schema}inbox_retention";

/// See [`AppliedIds`].
pub(crate) struct PostgresMemory {
    connection: PgConnection,
    statement_timeout: Duration,
    whose: Whose,
    page: Statement,
    find: Statement,
    unfinished: Statement,
    retained: Statement,
}

impl PostgresMemory {
    pub(crate) async fn open(
        mut connection: PgConnection,
        schema: Option<&Identifier>,
        whose: Whose,
        statement_timeout: Duration,
    ) -> Result<Self, MigrateError> {
        Migrator::<Postgres>::new(Line::Inbox).schema(schema.cloned()).check(&mut connection).await?;
        let render = |text| Template::new(text).schema(schema).render();
        Ok(Self {
            connection,
            statement_timeout,
            whose,
            page: render(PAGE),
            find: render(FIND),
            unfinished: render(UNFINISHED),
            retained: render(RETAINED),
        })
    }

    fn scope(&self) -> Option<&str> {
        self.whose.scope.as_ref().map(|scope| scope.as_str())
    }
}

/// Nothing is set for the session, which a pooler may hand on to a service. Every statement goes by
/// its index and sorts no table, whatever the planner believes of it.
async fn begin(
    connection: &mut PgConnection,
    statement_timeout: Duration,
) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN READ ONLY").await?;
    sqlx::query(
        "SELECT set_config('statement_timeout', $1, true), set_config('enable_seqscan', 'off', true), \
         set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)",
    )
    .bind(statement_timeout.as_millis().to_string())
    .execute(&mut *tx)
    .await?;
    Ok(tx)
}

type RememberedTuple = (Uuid, String, [u8; 32]);

fn remembered((id, scope, fingerprint): RememberedTuple) -> Remembered {
    Remembered { id, scope, fingerprint: Fingerprint::from(fingerprint) }
}

#[async_trait]
impl AppliedIds for PostgresMemory {
    async fn page(
        &mut self,
        after: (Uuid, &str),
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError> {
        let failed = || StoreError::during("read the inbox");
        let scope = self.scope().map(str::to_owned);
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        let rows: Vec<RememberedTuple> = sqlx::query_as(&self.page)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(scope)
            .bind(after.0)
            .bind(after.1)
            .bind(until)
            .bind(i64::from(rows_max))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(rows.into_iter().map(remembered).collect())
    }

    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError> {
        let failed = || StoreError::during("look up messages in the inbox");
        let scope = self.scope().map(str::to_owned);
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        let rows: Vec<RememberedTuple> = sqlx::query_as(&self.find)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(scope)
            .bind(ids)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(rows.into_iter().map(remembered).collect())
    }

    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError> {
        let failed = || StoreError::during("find attempts and dead letters");
        let scope = self.scope().map(str::to_owned);
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        let rows: Vec<(Uuid, Option<bool>)> = sqlx::query_as(&self.unfinished)
            .bind(self.whose.consumer.as_str().to_owned())
            .bind(scope)
            .bind(ids)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(rows.into_iter().map(|(id, is_open)| (id, Unfinished::of(is_open))).collect())
    }

    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError> {
        let failed = || StoreError::during("read from when the inbox remembers ids");
        let mut tx = begin(&mut self.connection, self.statement_timeout).await.map_err(failed())?;
        let found = sqlx::query_scalar(&self.retained).fetch_optional(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(found)
    }
}
