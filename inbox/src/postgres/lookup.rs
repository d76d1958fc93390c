//! Lookups on PostgreSQL: many keys with one statement, and reading with limits.

use std::time::Duration;

use migrations::query::{Query, Row};
use sqlx::{Connection as _, PgConnection, Postgres};
use uuid::Uuid;

use crate::dead_letters::HeldKey;
use crate::dialect::parts;
use crate::ids::DeadLetterId;
use crate::tables::Tables;

impl parts::Lookup for Postgres {
    async fn holders(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        consumer: &str,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, sqlx::Error> {
        let texts = |text: fn(&HeldKey) -> &str| keys.iter().map(text).collect::<Vec<_>>();
        let found: Vec<(i64, Uuid)> = sqlx::query_as(&tables.own.holders)
            .bind(consumer)
            .bind(texts(|key| &key.tenant))
            .bind(texts(|key| &key.topic))
            .bind(texts(|key| &key.key))
            .fetch_all(connection)
            .await?;
        let mut holders = vec![None; keys.len()];
        for (place, id) in found {
            let holder = usize::try_from(place - 1).ok().and_then(|at| holders.get_mut(at));
            let unasked = || {
                sqlx::Error::Decode("the database returned a holder for a key that was not requested".into())
            };
            *holder.ok_or_else(unasked)? = Some(DeadLetterId(id));
        }
        Ok(holders)
    }

    /// Sets nothing for the session, which a pooler may hand on to a service. The statement uses
    /// its index and sorts no table, whatever the planner estimates.
    async fn read_within(
        connection: &mut PgConnection,
        query: Query<Self>,
        limit: Duration,
    ) -> Result<Vec<Row<Self>>, sqlx::Error> {
        let mut tx = connection.begin_with("BEGIN READ ONLY").await?;
        sqlx::query(
            "SELECT set_config('statement_timeout', $1, true), set_config('enable_seqscan', 'off', true), \
             set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)",
        )
        .bind(limit.as_millis().to_string())
        .execute(&mut *tx)
        .await?;
        let found = query.rows(&mut tx).await?;
        tx.commit().await?;
        Ok(found)
    }
}
