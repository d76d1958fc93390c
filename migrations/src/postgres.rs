//! PostgreSQL: an advisory lock of the transaction keeps migrators apart.

mod objects;

use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::types::time::OffsetDateTime;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, SqlSafeStr as _, Transaction};

use crate::backend::{Backend, Dialect};
use crate::error::{MigrateError, SchemaError};
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::own_transaction::MARK;
use crate::patience::{Patience, Waiting};
use crate::snapshot;
use crate::sql::{Statement, Template};
use crate::status::Applied;

/// The number of the lock of the migrations. It is arbitrary, and others are unlikely to use it:
/// the first eight bytes of "outbox_toolkit".
const LOCK: i64 = 8_031_170_788_430_771_316;

/// Pause of a script between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes the [lock](LOCK), or pauses and returns false. It does not queue, because a statement that
/// waits cannot report the holder.
const TRY_LOCK: &str = "SELECT CASE WHEN pg_try_advisory_xact_lock(8031170788430771316) THEN true
    ELSE pg_sleep(0.1)::text IS NULL END";

/// Describes the session that holds the lock. Details that this role may not see are left out.
const HOLDER: &str = "
SELECT format('pid %s of %s, application %s', l.pid, coalesce(a.usename::text, 'an unknown user'),
        coalesce(quote_literal(nullif(a.application_name, '')), 'unknown'))
    || coalesce(', ' || a.state, '') || coalesce(', since ' || date_trunc('second', a.xact_start)::text, '')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND (l.classid::bigint << 32 | l.objid::bigint) = 8031170788430771316
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) LIMIT 1";

/// Time between two reports of a migrator that waits for another one.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Lifts the time limits of a role or database, which are meant for services: the duration of a
/// migration depends on the size of its table. `transaction_timeout` exists since PostgreSQL 17.
/// `lock_timeout` stays: it limits how long others queue behind a migration that waits for a table.
/// An idle transaction ends: its migrator is lost, and its locks would stop producers and every
/// later migrator. The view `pg_settings` would need a temporary file, which not every role may
/// have.
const TIME_LIMITS: &str = "SELECT set_config(name, value, true) FROM (VALUES ('statement_timeout', '0'),
    ('idle_in_transaction_session_timeout', '60s'), ('transaction_timeout', '0')) AS limits (name, value)
    WHERE current_setting(name, true) IS NOT NULL";

/// Takes the lock of the migrations, or returns an error that names its holder.
async fn lock(connection: &mut PgConnection, patience: &Patience) -> Result<(), MigrateError> {
    let since = Instant::now();
    let mut report_after = REPORT_INTERVAL;
    loop {
        let taken = sqlx::query_scalar(TRY_LOCK).fetch_one(&mut *connection).await;
        if taken.map_err(MigrateError::database("lock the migrations"))? {
            return Ok(());
        }
        let waited = since.elapsed();
        if waited >= patience.max {
            return Err(MigrateError::Busy { holder: holder(connection).await, waited });
        }
        if waited >= report_after {
            report_after = waited + REPORT_INTERVAL;
            let holder = holder(&mut *connection).await;
            (patience.report)(&Waiting { holder, waited });
        }
    }
}

/// Describes the holder of the lock, as far as this role may see it.
async fn holder(connection: &mut PgConnection) -> String {
    // In a savepoint: a role that may not read the views must still be able to migrate.
    let read = async {
        let mut savepoint = connection.begin().await?;
        let found: Result<Option<String>, sqlx::Error> =
            sqlx::query_scalar(HOLDER).fetch_optional(&mut *savepoint).await;
        savepoint.rollback().await?;
        found
    };
    let found = read.await.ok().flatten();
    found.unwrap_or_else(|| String::from("a session that is not visible or has just ended"))
}

impl Backend for Postgres {
    const DIALECT: Dialect = Dialect::Postgres;

    const BOOKKEEPING: &'static str = "\
CREATE TABLE IF NOT EXISTS {schema}outbox_toolkit_migration (
    line       text COLLATE \"C\" NOT NULL,
    version    integer     NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_toolkit_migration_pkey PRIMARY KEY (line, version)
);";

    const CHECK_PLACE: &'static str = "\
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass('outbox_toolkit_migration') AND n.nspname <> current_schema()) THEN
        RAISE EXCEPTION 'the tables are in a later schema of the search_path, and new ones would hide them'
            USING HINT = 'Put their schema first, or print this script with --schema.';
    END IF;
END $$;
";

    fn begin_script(wait_max: Duration) -> String {
        // One more attempt, at the end of the wait.
        let attempts = wait_max.as_millis().div_ceil(PAUSE.as_millis()) + 1;
        format!(
            "\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
DO $$ DECLARE
    holder text := 'a session that is not visible or has just ended';
BEGIN
    FOR attempt IN 1..{attempts} LOOP
        IF pg_try_advisory_xact_lock({LOCK}) THEN
            RETURN;
        END IF;
        IF attempt < {attempts} THEN
            PERFORM pg_sleep({pause});
        END IF;
    END LOOP;
    BEGIN
        holder := coalesce(({HOLDER}), holder);
    EXCEPTION WHEN OTHERS THEN
        NULL; -- This role may not read the views.
    END;
    RAISE EXCEPTION 'another migration did not end within {waited} s: %', holder
        USING ERRCODE = 'lock_not_available',
            HINT = 'Nothing was changed. Run this script again once that migration has ended.';
END $$;",
            pause = PAUSE.as_secs_f64(),
            waited = wait_max.as_secs_f64(),
        )
    }

    /// Sends one message. BEGIN comes last: a statement that fails before it leaves no transaction.
    async fn begin_marked(
        connection: PoolConnection<Self>,
    ) -> Result<Transaction<'static, Self>, sqlx::Error> {
        let begin = AssertSqlSafe(format!("{MARK}; BEGIN"));
        Transaction::begin(connection, Some(begin.into_sql_str())).await
    }

    async fn is_open(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        Ok(connection.is_in_transaction())
    }

    async fn mark(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(MARK).execute(connection).await.map(drop)
    }

    async fn is_marked(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar("SELECT coalesce(current_setting('outbox.transaction', true) = 'own', false)")
            .fetch_one(connection)
            .await
    }

    async fn begin<'c>(
        connection: &'c mut PgConnection,
        patience: &Patience,
    ) -> Result<Transaction<'c, Self>, MigrateError> {
        // Does not rely on the defaults of role and database. With one snapshot for the whole
        // transaction, a migrator that waited for the lock would apply again what another one had
        // applied meanwhile. A transaction of the caller keeps its settings.
        let is_of_caller = connection.is_in_transaction();
        let begun = if is_of_caller {
            connection.begin().await
        } else {
            connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await
        };
        let mut tx = begun.map_err(MigrateError::database("begin a transaction"))?;
        if !is_of_caller {
            let set = sqlx::query(TIME_LIMITS).execute(&mut *tx).await;
            set.map_err(MigrateError::database("override the time limits of its role"))?;
        }
        if let Err(error) = lock(&mut tx, patience).await {
            tx.rollback().await.map_err(MigrateError::database("roll back"))?;
            return Err(error);
        }
        // Otherwise ten processes that start at once would each log "already exists, skipping".
        sqlx::query("SET LOCAL client_min_messages = warning")
            .execute(&mut *tx)
            .await
            .map_err(MigrateError::database("silence its notices"))?;
        Ok(tx)
    }

    /// Checks the encoding of the database. Producers write their own texts, and get an error for a
    /// character that the encoding lacks. Consumers, keys and sagas store texts from elsewhere: a
    /// message that cannot be stored would stop its consumer.
    async fn check_texts(connection: &mut PgConnection, line: Line) -> Result<(), MigrateError> {
        if line == Line::Outbox {
            return Ok(());
        }
        let encoding: String = sqlx::query_scalar("SELECT current_setting('server_encoding')")
            .fetch_one(connection)
            .await
            .map_err(MigrateError::database("report its encoding"))?;
        match encoding.as_str() {
            // SQL_ASCII takes any bytes.
            "UTF8" | "SQL_ASCII" => Ok(()),
            _ => Err(MigrateError::Encoding { line, encoding }),
        }
    }

    async fn check_place(connection: &mut PgConnection) -> Result<(), MigrateError> {
        let hidden: Option<(String, String)> = sqlx::query_as(
            "SELECT n.nspname::text, current_schema()::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = to_regclass('outbox_toolkit_migration') AND n.nspname <> current_schema()",
        )
        .fetch_optional(connection)
        .await
        .map_err(MigrateError::database("look up outbox_toolkit_migration"))?;
        match hidden {
            Some((found, first)) => Err(MigrateError::Hidden { found, first }),
            None => Ok(()),
        }
    }

    async fn run(
        connection: &mut PgConnection,
        script: &Statement,
        what: String,
    ) -> Result<(), MigrateError> {
        sqlx::raw_sql(script).execute(connection).await.map_err(MigrateError::database(what))?;
        Ok(())
    }

    async fn record(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
        migration: &Migration,
    ) -> Result<(), MigrateError> {
        let insert = Template::new(
            "INSERT INTO {schema}outbox_toolkit_migration (line, version, name, checksum) VALUES ($1, $2, $3, $4)",
        );
        sqlx::query(&insert.schema(schema).render())
            .bind(line.as_str())
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .execute(connection)
            .await
            .map_err(MigrateError::database(format!("record migration {}", migration.name)))?;
        Ok(())
    }

    async fn applied(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
    ) -> Result<Vec<Applied>, MigrateError> {
        if let Some(schema) = schema {
            let known: bool = sqlx::query_scalar("SELECT to_regnamespace($1) IS NOT NULL")
                .bind(schema.quoted())
                .fetch_one(&mut *connection)
                .await
                .map_err(MigrateError::database("look up the schema"))?;
            if !known {
                return Err(MigrateError::NoSuchSchema { schema: schema.clone() });
            }
        }
        let exists = Template::new("SELECT to_regclass('{schema}outbox_toolkit_migration') IS NOT NULL");
        let exists: bool = sqlx::query_scalar(&exists.schema(schema).render())
            .fetch_one(&mut *connection)
            .await
            .map_err(MigrateError::database("look up outbox_toolkit_migration"))?;
        if !exists {
            return Ok(Vec::new());
        }
        let read = Template::new(
            "SELECT version, name, checksum, applied_at FROM {schema}outbox_toolkit_migration WHERE line = $1 \
             ORDER BY version",
        );
        let rows: Vec<(i32, String, String, OffsetDateTime)> = sqlx::query_as(&read.schema(schema).render())
            .bind(line.as_str())
            .fetch_all(connection)
            .await
            .map_err(MigrateError::database("read outbox_toolkit_migration"))?;
        let applied = rows.into_iter().map(|(version, name, checksum, applied_at)| Applied {
            version,
            name,
            checksum,
            applied_at,
        });
        Ok(applied.collect())
    }

    async fn has_tables(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        known: &[Migration],
    ) -> Result<bool, MigrateError> {
        objects::has_tables(connection, schema, known).await
    }

    async fn fault(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
        known: &[Migration],
    ) -> Result<Option<SchemaError>, MigrateError> {
        objects::fault(connection, schema, line, known).await
    }

    async fn unusable(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
    ) -> Result<Option<SchemaError>, MigrateError> {
        objects::unusable(connection, schema).await
    }

    async fn with_row_security(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        known: &[Migration],
    ) -> Result<Vec<String>, MigrateError> {
        objects::with_row_security(connection, schema, known).await
    }

    async fn unlogged(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
        known: &[Migration],
    ) -> Result<Vec<String>, MigrateError> {
        objects::unlogged(connection, schema, line, known).await
    }

    async fn missing(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
        known: &[Migration],
    ) -> Result<Vec<String>, MigrateError> {
        objects::missing(connection, schema, line, known).await
    }

    async fn bring_home(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
        known: &[Migration],
    ) -> Result<bool, MigrateError> {
        objects::bring_home(connection, schema, line, known).await
    }

    async fn describe(
        connection: &mut PgConnection,
        schema: Option<&Identifier>,
        line: Line,
    ) -> Result<String, MigrateError> {
        snapshot::postgres::describe(connection, schema, line).await
    }
}
