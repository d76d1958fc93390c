//! Attempts of many messages on SQLite, one by one.

use migrations::query::Query;
use sqlx::{Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use crate::attempts::{Forget, InHand};
use crate::dialect::parts;
use crate::ids::Key;
use crate::rows;
use crate::tables::{Tables, of_key};

impl parts::Attempts for Sqlite {
    async fn take_in_hand(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<Vec<InHand>, sqlx::Error> {
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            let take: Query<Self> = of_key(&tables.own.take_in_hand, *key).bind(process);
            taken.push(rows::in_hand(&take.one(&mut *connection).await?)?);
        }
        Ok(taken)
    }

    /// Returns false: the asking transaction is the only writer, and a handler's transaction writes
    /// too.
    async fn is_being_handled(
        tx: Transaction<'static, Self>,
        _tables: &Tables<Self>,
        _key: Key<'_>,
    ) -> Result<bool, sqlx::Error> {
        tx.rollback().await?;
        Ok(false)
    }

    async fn put_down(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        for key in keys {
            put_down_one(connection, tables, *key, Some(process)).await?;
        }
        Ok(())
    }

    async fn forget_attempts(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        forget: Forget,
    ) -> Result<(), sqlx::Error> {
        for key in keys {
            of_key::<Self>(&tables.own.forget_attempts, *key)
                .bind(forget.also_counted())
                .bind(forget.also_ends())
                .bind(forget.also_noted())
                .run(&mut *connection)
                .await?;
            if forget != Forget::All {
                put_down_one(connection, tables, *key, None).await?;
            }
        }
        Ok(())
    }
}

/// Removes the note of one process, or of any process when `process` is `None`.
async fn put_down_one(
    connection: &mut SqliteConnection,
    tables: &Tables<Sqlite>,
    key: Key<'_>,
    process: Option<Uuid>,
) -> Result<(), sqlx::Error> {
    of_key::<Sqlite>(&tables.own.put_down, key).bind(process).run(connection).await.map(drop)
}
