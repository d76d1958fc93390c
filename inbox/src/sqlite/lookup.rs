//! Lookups on SQLite.

use std::time::Duration;

use migrations::query::{Query, Row};
use sqlx::{Sqlite, SqliteConnection};

use crate::dead_letters::HeldKey;
use crate::dialect::parts;
use crate::ids::DeadLetterId;
use crate::rows;
use crate::tables::Tables;

impl parts::Lookup for Sqlite {
    async fn holders(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        consumer: &str,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, sqlx::Error> {
        let mut holders = Vec::with_capacity(keys.len());
        for HeldKey { tenant, topic, key } in keys {
            let look = Query::<Self>::new(&tables.own.holder).bind(consumer).bind(tenant).bind(topic);
            let holder = look.bind(key).first(&mut *connection).await?;
            holders.push(holder.as_ref().map(rows::letter_id).transpose()?);
        }
        Ok(holders)
    }

    /// Has no limit: a statement runs in this process.
    async fn read_within(
        connection: &mut SqliteConnection,
        query: Query<Self>,
        _limit: Duration,
    ) -> Result<Vec<Row<Self>>, sqlx::Error> {
        query.rows(connection).await
    }
}
