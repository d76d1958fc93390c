//! SQLite: the write lock keeps migrators apart. They wait for it as long as the connection's busy
//! timeout (sqlx: 5 s unless set).

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::types::time::OffsetDateTime;
use sqlx::{Connection, Row as _, SqlSafeStr as _, Sqlite, SqliteConnection, SqlitePool, Transaction};

use crate::backend::{Backend, Dialect};
use crate::error::MigrateError;
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::patience::Patience;
use crate::snapshot;
use crate::sql::Statement;
use crate::status::Applied;

/// The names of the values of `PRAGMA synchronous`. From FULL on, a commit is on disk when it
/// returns. With NORMAL, a frequent choice beside a write-ahead log, a power loss may undo the
/// latest commits.
const SYNCHRONOUS: [&str; 4] = ["OFF", "NORMAL", "FULL", "EXTRA"];
const FULL: i64 = 2;

/// Reads the level of durability that commits of a connection wait for. It must not be prepared:
/// SQLite would return the value at the time of preparation.
async fn synchronous(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::raw_sql("PRAGMA synchronous").fetch_one(connection).await?.try_get(0)
}

/// The error for a transaction whose commit does not wait for the disk.
fn does_not_wait(found: i64) -> sqlx::Error {
    let name = usize::try_from(found).ok().and_then(|found| SYNCHRONOUS.get(found)).unwrap_or(&"unknown");
    let problem = format!(
        "PRAGMA synchronous of this connection is {found} ({name}): after a power loss its commit may be gone, \
         although it was acknowledged. It must be at least {FULL} (FULL), and cannot be changed inside a transaction. \
         Open the pool with synchronous(SqliteSynchronous::Full), as outbox_toolkit::pool does, or let the toolkit \
         begin the transaction"
    );
    sqlx::Error::Configuration(problem.into())
}

/// Begins a transaction with `statement`, on a connection that is in none
/// ([`acquire_outside`](Backend::acquire_outside)). Its commit waits for the disk, and so do later
/// ones on the same connection.
///
/// # Errors
/// Those of the statement.
#[doc(hidden)]
pub async fn begin_durable(
    mut connection: PoolConnection<Sqlite>,
    statement: &'static str,
) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    Sqlite::wait_for_the_disk(&mut connection).await?;
    Transaction::begin(connection, Some(statement.into_sql_str())).await
}

const BEGIN_SCRIPT: &str = "\
-- An error does not end a transaction of SQLite. Stop at the first one: sqlite3 -bail FILE < SCRIPT
BEGIN IMMEDIATE;";

impl Backend for Sqlite {
    const DIALECT: Dialect = Dialect::Sqlite;

    const BOOKKEEPING: &'static str = "\
CREATE TABLE IF NOT EXISTS {schema}outbox_toolkit_migration (
    line       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_toolkit_migration_pkey PRIMARY KEY (line, version)
) STRICT;";

    const CHECK_PLACE: &'static str = "";

    /// Does not wait: the client's busy timeout decides, which is zero in the program `sqlite3`.
    fn begin_script(_wait_max: Duration) -> String {
        String::from(BEGIN_SCRIPT)
    }

    /// A transaction can be ended in SQL or by SQLite itself (`RAISE(ROLLBACK)`, a full disk). sqlx
    /// cannot roll it back then, and believes forever that its connection is inside it. The pools
    /// of `outbox::pool` close such a connection when they get it back; this closes one of any
    /// other pool.
    async fn acquire_outside(pool: &SqlitePool) -> Result<PoolConnection<Self>, sqlx::Error> {
        loop {
            let mut connection = pool.acquire().await?;
            if connection.is_in_transaction() {
                // Waits until the rollback of a dropped transaction is done.
                connection.ping().await?;
            }
            if !connection.is_in_transaction() {
                return Ok(connection);
            }
            connection.close().await?;
        }
    }

    /// Takes the write lock, waiting within the busy timeout. A deferred transaction that starts to
    /// write later is refused at once when another one has written since. The mark is a savepoint.
    async fn begin_marked(
        connection: PoolConnection<Self>,
    ) -> Result<Transaction<'static, Self>, sqlx::Error> {
        begin_durable(connection, "BEGIN IMMEDIATE; SAVEPOINT outbox_transaction").await
    }

    /// Keeps EXTRA, which waits for more.
    async fn wait_for_the_disk(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        if synchronous(connection).await? < FULL {
            sqlx::raw_sql("PRAGMA synchronous = FULL").execute(connection).await?;
        }
        Ok(())
    }

    async fn check_it_waits_for_the_disk(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        match synchronous(connection).await? {
            found if found < FULL => Err(does_not_wait(found)),
            _ => Ok(()),
        }
    }

    fn was_over(rollback: &sqlx::Error) -> bool {
        let text = rollback.as_database_error().map(|error| error.message());
        // The second text is of one that ended inside a savepoint.
        let texts = ["no transaction is active", "no such savepoint: _sqlx_savepoint"];
        text.is_some_and(|text| texts.iter().any(|over| text.contains(over)))
    }

    /// Waits for the thread that runs the statements, so that all earlier ones are done.
    async fn is_open(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
        connection.ping().await?;
        Ok(connection.is_in_transaction())
    }

    async fn mark(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("SAVEPOINT outbox_transaction").execute(connection).await.map(drop)
    }

    async fn is_marked(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
        const ASK: &str = "RELEASE outbox_transaction; SAVEPOINT outbox_transaction";
        match sqlx::raw_sql(ASK).execute(connection).await {
            Ok(_) => Ok(true),
            // SQLITE_ERROR: there is no such savepoint.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("1") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for another migrator as for any other writer: as long as the connection's
    /// `busy_timeout`.
    async fn begin<'c>(
        connection: &'c mut SqliteConnection,
        _: &Patience,
    ) -> Result<Transaction<'c, Self>, MigrateError> {
        connection.begin_with("BEGIN IMMEDIATE").await.map_err(MigrateError::database("take the write lock"))
    }

    /// Accepts every line: a SQLite file holds any Unicode text.
    async fn check_texts(_: &mut SqliteConnection, _: Line) -> Result<(), MigrateError> {
        Ok(())
    }

    async fn check_place(_: &mut SqliteConnection) -> Result<(), MigrateError> {
        Ok(())
    }

    async fn run(
        connection: &mut SqliteConnection,
        script: &Statement,
        what: String,
    ) -> Result<(), MigrateError> {
        sqlx::raw_sql(script).execute(connection).await.map_err(MigrateError::database(what))?;
        Ok(())
    }

    async fn record(
        connection: &mut SqliteConnection,
        _: Option<&Identifier>,
        line: Line,
        migration: &Migration,
    ) -> Result<(), MigrateError> {
        sqlx::query(
            "INSERT INTO outbox_toolkit_migration (line, version, name, checksum) VALUES (?1, ?2, ?3, ?4)",
        )
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
        connection: &mut SqliteConnection,
        _: Option<&Identifier>,
        line: Line,
    ) -> Result<Vec<Applied>, MigrateError> {
        let exists: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'outbox_toolkit_migration')",
        )
        .fetch_one(&mut *connection)
        .await
        .map_err(MigrateError::database("look up outbox_toolkit_migration"))?;
        if !exists {
            return Ok(Vec::new());
        }
        let rows: Vec<(i32, String, String, i64)> = sqlx::query_as(
            "SELECT version, name, checksum, applied_at FROM outbox_toolkit_migration WHERE line = ?1 \
             ORDER BY version",
        )
        .bind(line.as_str())
        .fetch_all(connection)
        .await
        .map_err(MigrateError::database("read outbox_toolkit_migration"))?;
        let applied = rows.into_iter().map(|(version, name, checksum, micros)| Applied {
            version,
            name,
            checksum,
            applied_at: OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
                .unwrap_or(OffsetDateTime::UNIX_EPOCH),
        });
        Ok(applied.collect())
    }

    async fn has_tables(
        connection: &mut SqliteConnection,
        _: Option<&Identifier>,
        known: &[Migration],
    ) -> Result<bool, MigrateError> {
        let found: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table'")
            .fetch_all(connection)
            .await
            .map_err(MigrateError::database("look up its tables"))?;
        let made = |migration: &Migration| {
            let rests = migration.template.split("\nCREATE TABLE ").skip(1);
            rests.filter_map(|rest| rest.split_once(' ')).map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        let wanted: Vec<String> = known.iter().flat_map(made).collect();
        let has_list = found.iter().any(|name| name == "outbox_toolkit_migration");
        Ok(has_list && !wanted.is_empty() && wanted.iter().all(|name| found.contains(name)))
    }

    async fn describe(
        connection: &mut SqliteConnection,
        _: Option<&Identifier>,
        line: Line,
    ) -> Result<String, MigrateError> {
        snapshot::sqlite::describe(connection, line).await
    }
}
