//! The databases that a world can have, and their differences.

use std::future::Future;

use sqlx::Row as _;
use sqlx::types::Uuid;

/// A database that a world can have: SQLite, or PostgreSQL with the feature `postgres`. Sealed.
pub trait Database: saga::Dialect {
    /// Creates the tables in which a world records effects, and the order of messages.
    #[doc(hidden)]
    const RECORDS: &'static str;

    /// Reads the outbox in the order of ids. `is_in_order` is true for a message whose position in
    /// this list is its position among all messages of its key: no transaction with another of them
    /// ran at the same time.
    #[doc(hidden)]
    const OUTBOX: &'static str;

    /// Reads topic and payload of each message in the outbox.
    #[doc(hidden)]
    const MESSAGES: &'static str;

    /// Makes sagas without a worker, and their timers, due. Locks the rows of sagas before those of
    /// their steps, in the order of workers, so that there are no deadlocks.
    #[doc(hidden)]
    const NOW: &'static str;

    /// Ends the leases of all workers of sagas.
    #[doc(hidden)]
    const LAPSE: &'static str;

    /// Runs one or more statements.
    #[doc(hidden)]
    fn run_script(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns the first column of the first row, an integer of any size.
    #[doc(hidden)]
    fn query_number(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Returns the first column of all rows, texts or UUIDs.
    #[doc(hidden)]
    fn query_texts(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;
}

/// Implements the functions, whose code is the same for every database.
macro_rules! functions {
    ($connection:ty) => {
        async fn run_script(connection: &mut $connection, sql: &'static str) -> Result<(), sqlx::Error> {
            sqlx::raw_sql(sql).execute(connection).await.map(drop)
        }

        async fn query_number(connection: &mut $connection, sql: &'static str) -> Result<i64, sqlx::Error> {
            let row = sqlx::query(sql).fetch_one(connection).await?;
            let int = || row.try_get::<i32, _>(0).map(i64::from);
            let smallint = || row.try_get::<i16, _>(0).map(i64::from);
            row.try_get::<i64, _>(0).or_else(|error| int().or_else(|_| smallint()).map_err(|_| error))
        }

        async fn query_texts(
            connection: &mut $connection,
            sql: &'static str,
        ) -> Result<Vec<String>, sqlx::Error> {
            let rows = sqlx::query(sql).fetch_all(connection).await?;
            let mut texts = Vec::with_capacity(rows.len());
            for row in rows {
                let id = || row.try_get::<Uuid, _>(0).map(|id| id.to_string());
                texts.push(row.try_get::<String, _>(0).or_else(|error| id().map_err(|_| error))?);
            }
            Ok(texts)
        }
    };
}

impl Database for sqlx::Sqlite {
    const RECORDS: &'static str = "CREATE TABLE testkit_effect (seq INTEGER PRIMARY KEY AUTOINCREMENT, \
        consumer TEXT NOT NULL, scope TEXT NOT NULL, message_id TEXT NOT NULL, key TEXT, payload BLOB NOT NULL)";

    /// With one writer at a time, ids ascend in the order of commits.
    const OUTBOX: &'static str = "SELECT id, message_id, topic, key, payload, \
        deliver_at IS NOT NULL AS is_scheduled, true AS is_in_order FROM outbox_message ORDER BY id";

    const MESSAGES: &'static str =
        "SELECT topic || ' ' || CAST(payload AS TEXT) FROM outbox_message ORDER BY id";

    const NOW: &'static str = "UPDATE saga SET wake_at = 1 WHERE wake_at IS NOT NULL AND worker IS NULL;
        UPDATE saga_step SET due_at = 1 WHERE due_at IS NOT NULL AND kind = 'sleep'";

    const LAPSE: &'static str = "UPDATE saga SET wake_at = 1 WHERE wake_at IS NOT NULL";

    functions!(sqlx::SqliteConnection);
}

#[cfg(feature = "postgres")]
impl Database for sqlx::Postgres {
    // Triggers record the snapshot with which a message is enqueued: it sees the transactions that
    // had committed before. A row trigger would also see those that commit after the statement has
    // got its ids.
    const RECORDS: &'static str = "
        CREATE TABLE testkit_effect (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, consumer text NOT NULL,
            scope text NOT NULL, message_id text NOT NULL, key text, payload bytea NOT NULL);
        CREATE TABLE testkit_enqueued (message_id uuid PRIMARY KEY, key text, xid xid8 NOT NULL,
            seen pg_snapshot NOT NULL);
        CREATE INDEX ON testkit_enqueued (key);
        CREATE FUNCTION testkit_enqueue() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            IF TG_LEVEL = 'STATEMENT' THEN
                PERFORM set_config('testkit.seen', pg_current_snapshot()::text, true);
            ELSE
                INSERT INTO testkit_enqueued
                VALUES (NEW.message_id, NEW.key, NEW.xid, current_setting('testkit.seen')::pg_snapshot);
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER testkit_begin BEFORE INSERT ON outbox_message
            FOR EACH STATEMENT EXECUTE FUNCTION testkit_enqueue();
        CREATE TRIGGER testkit_end AFTER INSERT ON outbox_message
            FOR EACH ROW EXECUTE FUNCTION testkit_enqueue()";

    /// Two transactions ran one after the other if the snapshot of one sees the other. A
    /// transaction may or may not see itself.
    const OUTBOX: &'static str = "
        SELECT m.id, m.message_id::text AS message_id, m.topic, m.key, m.payload,
            m.deliver_at IS NOT NULL AS is_scheduled,
            e.xid IS NOT NULL AND NOT EXISTS (
                SELECT FROM testkit_enqueued AS o WHERE o.key = e.key AND o.xid <> e.xid
                    AND NOT pg_visible_in_snapshot(o.xid, e.seen)
                    AND NOT pg_visible_in_snapshot(e.xid, o.seen)) AS is_in_order
        FROM outbox_message AS m LEFT JOIN testkit_enqueued AS e ON e.message_id = m.message_id ORDER BY m.id";

    const MESSAGES: &'static str =
        "SELECT topic || ' ' || encode(payload, 'escape') FROM outbox_message ORDER BY id";

    const NOW: &'static str = "
        SELECT FROM saga WHERE wake_at IS NOT NULL AND worker IS NULL ORDER BY type, id FOR NO KEY UPDATE;
        UPDATE saga SET wake_at = now() - interval '1 second' WHERE wake_at IS NOT NULL AND worker IS NULL;
        UPDATE saga_step SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL AND kind = 'sleep'";

    const LAPSE: &'static str =
        "UPDATE saga SET wake_at = now() - interval '1 second' WHERE wake_at IS NOT NULL";

    functions!(sqlx::PgConnection);
}
