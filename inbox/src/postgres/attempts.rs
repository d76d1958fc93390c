//! Attempts of many messages on PostgreSQL, with one statement.

use std::collections::HashMap;

use message::Fingerprint;
use migrations::query::Row;
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::guard::{Columns, has_code};
use crate::attempts::{Forget, InHand};
use crate::comparison::Content;
use crate::dialect::{Mark, NewRow, parts};
use crate::ids::Key;
use crate::rows;
use crate::store_error::LOCK_NOT_AVAILABLE;
use crate::tables::Tables;

/// Maximum attempts to write and read notes. A note of another process that disappears before it is
/// read is written in the next attempt.
const TAKE_MAX: usize = 5;

impl parts::Attempts for Postgres {
    async fn take_in_hand(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<Vec<InHand>, sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(Vec::new()) };
        let Columns { ids, tenants } = Columns::of(keys);
        let mut taken = HashMap::new();
        let statements = [&tables.own.take_in_hand, &tables.own.taken];
        for statement in statements.into_iter().cycle().take(2 * TAKE_MAX) {
            let found = sqlx::query(statement).bind(consumer).bind(&ids).bind(&tenants).bind(process);
            // RETURNING has no order of its own.
            for row in found.fetch_all(&mut *connection).await?.into_iter().map(Row::<Self>::of) {
                let place: (Uuid, String) = (row.get("message_id")?, row.get("scope")?);
                taken.insert(place, rows::in_hand(&row)?);
            }
            let place = |key: &Key<'_>| taken.get(&(key.id, key.tenant.to_owned())).copied();
            if let Some(taken) = keys.iter().map(place).collect() {
                return Ok(taken);
            }
        }
        Err(sqlx::Error::RowNotFound)
    }

    /// Tries to insert the row. The process that handles the message has inserted it without
    /// committing, so another insert waits; nothing else shows that. The answer is the same behind
    /// a pooler, and for a process of any version.
    async fn is_being_handled(
        mut tx: Transaction<'static, Self>,
        tables: &Tables<Self>,
        key: Key<'_>,
    ) -> Result<bool, sqlx::Error> {
        sqlx::query(&tables.own.wait_for_a_moment).execute(&mut *tx).await?;
        let content = Content { fingerprint: Fingerprint::from([0; 32]), source: "", canonical: None };
        let inserted = tables.insert(&mut tx, NewRow { key, content }, Mark::No).await;
        let is_locked = inserted.as_ref().err().is_some_and(|error| has_code(error, LOCK_NOT_AVAILABLE));
        tx.rollback().await?;
        if is_locked { Ok(true) } else { inserted.map(|_| false) }
    }

    async fn put_down(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(()) };
        let Columns { ids, tenants } = Columns::of(keys);
        let put_down = sqlx::query(&tables.own.put_down).bind(consumer).bind(&ids).bind(&tenants);
        put_down.bind(process).execute(connection).await.map(drop)
    }

    async fn forget_attempts(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        forget: Forget,
    ) -> Result<(), sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(()) };
        let Columns { ids, tenants } = Columns::of(keys);
        let forgetting = sqlx::query(&tables.own.forget_attempts).bind(consumer).bind(&ids).bind(&tenants);
        let forgetting =
            forgetting.bind(forget.also_counted()).bind(forget.also_ends()).bind(forget.also_noted());
        forgetting.execute(&mut *connection).await?;
        if forget != Forget::All {
            let put_down = sqlx::query(&tables.own.put_down_counted).bind(consumer).bind(&ids).bind(&tenants);
            put_down.execute(connection).await?;
        }
        Ok(())
    }
}
