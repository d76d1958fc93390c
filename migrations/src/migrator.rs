//! Brings a database up to date.

use std::fmt::Write;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::error::{MigrateError, SchemaError};
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::patience::{Patience, Waiting};
use crate::sql::{Statement, Template};
use crate::status::Status;

/// The statement that records versions, up to their values.
const RECORD: &str = "INSERT INTO {schema}outbox_toolkit_migration (line, version, name, checksum)";

/// One line of migrations for one dialect and, on PostgreSQL, one schema.
///
/// Safe to run in any number of processes at once. While a migrator checks and applies, it holds a
/// transaction-level advisory lock (PostgreSQL; works behind PgBouncer) or the write lock (SQLite).
/// It applies all pending migrations in that one transaction, or none. On PostgreSQL, the
/// transaction has no limit for a statement, but one of 60 s between two statements: a migrator
/// whose host has disappeared does not keep its locks.
///
/// Without a schema, the connection's `search_path` determines where the tables are. If it has
/// since got a schema before that one, which would hide the tables, nothing is applied. A schema
/// must exist: the operator creates it, with its owner and grants.
#[derive(Debug, Clone)]
pub struct Migrator<DB> {
    line: Line,
    known: &'static [Migration],
    schema: Option<Identifier>,
    patience: Patience,
    dialect: PhantomData<fn() -> DB>,
}

impl<DB: Backend> Migrator<DB> {
    /// Makes a migrator for a line.
    #[must_use]
    pub fn new(line: Line) -> Self {
        Self::with_migrations(line, line.migrations(DB::DIALECT))
    }

    /// Makes a migrator for these migrations, in the order of their versions, instead of the line's
    /// own. Tests of the mechanism need more versions than a line has.
    #[doc(hidden)]
    #[must_use]
    pub fn with_migrations(line: Line, known: &'static [Migration]) -> Self {
        Self { line, known, schema: None, patience: Patience::default(), dialect: PhantomData }
    }

    /// Sets the schema of the tables. SQLite has no schemas and ignores it.
    #[must_use]
    pub fn schema(mut self, schema: Option<Identifier>) -> Self {
        self.schema = schema;
        self
    }

    /// Sets how long [`up`](Self::up), and a script of [`sql`](Self::sql), wait on PostgreSQL for
    /// another migrator; 10 minutes by default. On SQLite, the connection's `busy_timeout` decides.
    #[must_use]
    pub fn wait_max(mut self, limit: Duration) -> Self {
        self.patience.max = limit;
        self
    }

    /// Sets what [`up`](Self::up) calls every 10 s while it waits on PostgreSQL for another
    /// migrator. By default it logs a warning.
    #[must_use]
    pub fn on_wait(mut self, report: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.patience.report = Arc::new(report);
        self
    }

    /// Applies the pending migrations and returns them; empty when the database is up to date.
    /// After `ALTER SCHEMA ... RENAME`, it also replaces the former name in the functions.
    ///
    /// # Errors
    /// [`MigrateError`]: the database is newer than this build, an applied migration differs from
    /// this build's, the tables exist although no version is recorded, the schema does not exist,
    /// the `search_path` leads to another schema than before, the role may not create tables, the
    /// database's encoding lacks characters that the tables need, another migration did not end in
    /// time, or the connection was lost. Then nothing is applied. Not cancel-safe: a dropped call
    /// may have been applied; read the [status](Self::status).
    pub async fn up(&self, connection: &mut DB::Connection) -> Result<&'static [Migration], MigrateError> {
        let mut tx = DB::begin(connection, &self.patience).await?;
        let status = self.status(&mut tx).await?;
        let pending = status.pending()?;
        if status.applied.is_empty() {
            self.refuse_unrecorded(&mut tx).await?;
            DB::check_texts(&mut tx, self.line).await?;
        }
        if !pending.is_empty() {
            if self.schema.is_none() {
                DB::check_place(&mut tx).await?;
            }
            let what = String::from("create outbox_toolkit_migration");
            let created = DB::run(&mut tx, &self.render(DB::BOOKKEEPING), what).await;
            created.map_err(MigrateError::of_creating)?;
        }
        for migration in pending {
            let what = format!("apply migration {} of the {}", migration.name, self.line);
            DB::run(&mut tx, &self.render(migration.template), what).await?;
            DB::record(&mut tx, self.schema.as_ref(), self.line, migration).await?;
            tracing::info!(line = %self.line, version = migration.version, name = migration.name, "migrated");
        }
        if DB::bring_home(&mut tx, self.schema.as_ref(), self.line, self.known).await? {
            tracing::info!(line = %self.line, "the schema was renamed; the functions name it again");
        }
        tx.commit().await.map_err(MigrateError::database("commit the migrations"))?;
        Ok(pending)
    }

    /// Reads which migrations the database has, and lists them beside those that this build knows.
    /// Reads only. Cancel-safe.
    ///
    /// # Errors
    /// [`MigrateError`] when the bookkeeping table cannot be read or the schema does not exist.
    pub async fn status(&self, connection: &mut DB::Connection) -> Result<Status, MigrateError> {
        let applied = DB::applied(connection, self.schema.as_ref(), self.line).await?;
        Ok(Status { line: self.line, applied, known: self.known })
    }

    /// Checks that this build can work with the database, and that its tables and functions hide no
    /// row from this role. Reads only. Cancel-safe.
    ///
    /// # Errors
    /// [`MigrateError::Schema`] names the command to run; any other error means that the database
    /// could not be read.
    pub async fn check(&self, connection: &mut DB::Connection) -> Result<(), MigrateError> {
        let Err(error) = self.fits(connection).await else { return Ok(()) };
        // Without the right to use a schema, its tables look as if they were missing.
        let may_be_hidden = matches!(
            error,
            MigrateError::Schema(SchemaError::Missing { .. }) | MigrateError::Database { .. }
        );
        if may_be_hidden && let Ok(Some(unusable)) = DB::unusable(connection, self.schema.as_ref()).await {
            return Err(unusable.into());
        }
        Err(error)
    }

    async fn fits(&self, connection: &mut DB::Connection) -> Result<(), MigrateError> {
        if let Some(fault) = DB::fault(connection, self.schema.as_ref(), self.line, self.known).await? {
            return Err(fault.into());
        }
        let status = self.status(connection).await?;
        if status.applied.is_empty() {
            self.refuse_unrecorded(connection).await?;
        }
        Ok(status.check()?)
    }

    /// Fails when the line's tables exist although none of its versions is recorded.
    async fn refuse_unrecorded(&self, connection: &mut DB::Connection) -> Result<(), MigrateError> {
        if !DB::has_tables(connection, self.schema.as_ref(), self.known).await? {
            return Ok(());
        }
        let versions: Vec<_> = self.known.iter().map(|migration| self.values_of(migration)).collect();
        let into = self.render(RECORD);
        let statement = format!("{} VALUES {}", into.as_str(), versions.join(", "));
        Err(SchemaError::Unrecorded { line: self.line, statement }.into())
    }

    /// Returns the row that records a migration, as SQL.
    fn values_of(&self, migration: &Migration) -> String {
        format!("('{}', {}, '{}', '{}')", self.line, migration.version, migration.name, migration.checksum())
    }

    /// Returns the line's tables with row-level security, whether or not it applies to this role;
    /// none on SQLite. Reads only. Cancel-safe.
    ///
    /// # Errors
    /// [`MigrateError::Database`] when the catalogs cannot be read.
    pub async fn with_row_security(
        &self,
        connection: &mut DB::Connection,
    ) -> Result<Vec<String>, MigrateError> {
        DB::with_row_security(connection, self.schema.as_ref(), self.known).await
    }

    /// Returns the tables of the line and of the bookkeeping, and their partitions, that were made
    /// unlogged by hand, so that a crash of the server empties them; none on SQLite. Reads only.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`MigrateError::Database`] when the catalogs cannot be read.
    pub async fn unlogged(&self, connection: &mut DB::Connection) -> Result<Vec<String>, MigrateError> {
        DB::unlogged(connection, self.schema.as_ref(), self.line, self.known).await
    }

    /// Returns the line's indexes and partitions that were dropped or detached by hand, or are not
    /// valid; none on SQLite. Reads only. Cancel-safe.
    ///
    /// # Errors
    /// [`MigrateError::Database`] when the catalogs cannot be read, or the line has no tables.
    pub async fn missing(&self, connection: &mut DB::Connection) -> Result<Vec<String>, MigrateError> {
        DB::missing(connection, self.schema.as_ref(), self.line, self.known).await
    }

    /// Returns the migrations of a range of versions as a script for an administrator who runs them
    /// by hand. The script includes the bookkeeping, all in one transaction that excludes running
    /// migrators. On PostgreSQL it waits for one of them up to [`wait_max`](Self::wait_max), and
    /// then fails with an error that names the session; on SQLite the client's busy timeout
    /// decides.
    ///
    /// # Errors
    /// [`SchemaError::TooNew`] when the range goes beyond what this build knows.
    pub fn sql(&self, versions: RangeInclusive<i32>) -> Result<String, SchemaError> {
        let build = self.known.last().map_or(0, |migration| migration.version);
        if *versions.end() > build {
            return Err(SchemaError::TooNew { line: self.line, database: *versions.end(), build });
        }
        let check = if self.schema.is_none() { DB::CHECK_PLACE } else { "" };
        let begin = DB::begin_script(self.patience.max);
        let mut script = format!("{}\n{check}{}\n", begin, self.render(DB::BOOKKEEPING));
        for migration in self.known.iter().filter(|migration| versions.contains(&migration.version)) {
            // Writing to a String cannot fail.
            let _ = writeln!(
                script,
                "\n-- {} {}\n{}\n{} VALUES {};",
                self.line,
                migration.name,
                self.render(migration.template).as_str().trim_end(),
                self.render(RECORD),
                self.values_of(migration),
            );
        }
        script.push_str("COMMIT;\n");
        Ok(script)
    }

    /// Returns a stable description of the line's tables, columns, defaults, constraints, indexes
    /// and functions, from the database's catalogs; the same for every schema. A test compares it
    /// with a committed copy.
    ///
    /// # Errors
    /// [`MigrateError::Database`] when the catalogs cannot be read.
    pub async fn snapshot(&self, connection: &mut DB::Connection) -> Result<String, MigrateError> {
        DB::describe(connection, self.schema.as_ref(), self.line).await
    }

    fn render(&self, template: &'static str) -> Statement {
        Template::new(template).schema(self.schema.as_ref()).render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{Postgres, Sqlite};

    const HIDDEN: &str = "in a later schema of the search_path";

    #[test]
    fn the_printed_script_is_one_transaction_with_its_bookkeeping() {
        let schema = Identifier::new("app").unwrap();
        let migrator = Migrator::<Postgres>::new(Line::Outbox).schema(Some(schema));
        let script = migrator.sql(1..=1).unwrap();
        assert!(script.starts_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"), "{script}");
        assert!(script.contains("1..6001 LOOP") && !script.contains("pg_advisory_xact_lock("), "{script}");
        assert!(script.contains(r#"CREATE TABLE "app".outbox_message"#), "{script}");
        assert!(script.contains("VALUES ('outbox', 1, '0001_outbox', '"), "{script}");
        assert!(script.ends_with("COMMIT;\n") && !script.contains("{schema}") && !script.contains(HIDDEN));
        assert!(Migrator::<Postgres>::new(Line::Outbox).sql(1..=1).unwrap().contains(HIDDEN));
    }

    #[test]
    fn versions_this_build_does_not_know_are_refused() {
        let error = Migrator::<Sqlite>::new(Line::Outbox).sql(1..=99).unwrap_err();
        assert!(matches!(error, SchemaError::TooNew { database: 99, .. }));
    }
}
