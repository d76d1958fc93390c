//! Reasons why a schema does not fit, with the remedy for each.

use std::error::Error;
use std::time::Duration;

use crate::identifier::Identifier;
use crate::line::Line;
use crate::sql_error_kind::SqlErrorKind;

/// The reason why this build cannot work with a database's schema. The operator is at fault; the
/// message names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// No migration of the line was applied yet.
    #[error("the tables of the {line} are missing; run `relay migrate up --line {line}`")]
    Missing {
        /// The line.
        line: Line,
    },
    /// The tables exist, but the list of versions has none of the line.
    #[error(
        "the list of versions, outbox_toolkit_migration, has none of the {line} although all its tables exist: was it \
         truncated? Restore the list from a backup; or, if this build made the tables, run `{statement}`"
    )]
    Unrecorded {
        /// The line.
        line: Line,
        /// The statement that records this build's versions.
        statement: String,
    },
    /// This build needs more than the database has.
    #[error(
        "the database has version {database} of the {line} tables, but this build needs {build}; run `relay \
         migrate up --line {line}`"
    )]
    TooOld {
        /// The line.
        line: Line,
        /// The database's version.
        database: i32,
        /// The version this build needs.
        build: i32,
    },
    /// The database was migrated by a newer build.
    #[error(
        "the database has version {database} of the {line} tables, but this build knows only {build}; \
         upgrade this program"
    )]
    TooNew {
        /// The line.
        line: Line,
        /// The database's version.
        database: i32,
        /// The newest version this build knows.
        build: i32,
    },
    /// An applied migration differs from the one in this build.
    #[error(
        "migration {version} ({name}) of the {line} was applied with different content than this build has; install \
         the build that applied it, or compare the schema and correct its checksum in outbox_toolkit_migration"
    )]
    Changed {
        /// The line.
        line: Line,
        /// The version.
        version: i32,
        /// The name as it was recorded.
        name: String,
    },
    /// Row-level security hides rows of a table from this role.
    #[error(
        "row-level security of the table {table} applies to this role, and rows that it hides would be lost without an \
         error; run `ALTER TABLE {table} DISABLE ROW LEVEL SECURITY`, or `ALTER ROLE … BYPASSRLS` for this role (a policy \
         that shows every row is not enough)"
    )]
    RowSecurity {
        /// The table, with its schema.
        table: String,
    },
    /// Row-level security hides rows of a table from its owner, and so from functions with the
    /// owner's rights.
    #[error(
        "row-level security of the table {table} applies to its owner, whose rights the functions use to \
         decide what is no longer needed; run `ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY`"
    )]
    ForcedRowSecurity {
        /// The table, with its schema.
        table: String,
    },
    /// The tables are in a schema that this role may not use, so it cannot determine whether they
    /// fit. The grant comes before the last semicolon: what follows is shown to readers without a
    /// login, and names no user.
    #[error(
        "the tables are in the schema {schema}, which this role may not use until the schema's owner runs `GRANT USAGE \
         ON SCHEMA {schema} TO {role}`; run the statements that `relay migrate roles` prints, as the owner of the tables"
    )]
    Unusable {
        /// The schema.
        schema: String,
        /// The role of the session.
        role: String,
    },
    /// A function uses the tables of another schema: its own schema was renamed.
    #[error(
        "the function {function} uses the tables of the schema {named}, as after ALTER SCHEMA … RENAME; as \
         their owner, run `relay migrate up --line {line}`, which sets the functions of the {line} to their \
         own schema"
    )]
    OtherSchema {
        /// The line.
        line: Line,
        /// The function, with its schema.
        function: String,
        /// The schema that it names.
        named: String,
    },
}

/// The reason why a database could not be migrated or inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The schema does not fit.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The configured PostgreSQL schema does not exist. The operator creates it, with its owner and
    /// grants.
    #[error("the schema {schema} does not exist in this database; run `CREATE SCHEMA {schema}` first")]
    NoSuchSchema {
        /// The schema.
        schema: Identifier,
    },
    /// The role may not create tables in the schema.
    #[error(
        "the tables cannot be created: {refusal}; grant CREATE on the schema to this role (`GRANT CREATE ON SCHEMA … TO …`), \
         or pass `--schema` with a schema in which it may create tables"
    )]
    MayNotCreate {
        /// The database's words, with the schema.
        refusal: String,
    },
    /// The tables are in one schema of the `search_path`, but new ones would be created in another
    /// one before it, and would hide them.
    #[error(
        "the tables are in the schema {found}, but the search_path now begins with {first}, where new \
         tables would hide them; pass `--schema {found}`, or put {found} first in the search_path of this \
         role. If this service should have its own tables, pass `--schema {first}`"
    )]
    Hidden {
        /// The schema with the tables.
        found: String,
        /// The schema in which tables would be created.
        first: String,
    },
    /// The database's encoding lacks characters that the tables must store.
    #[error(
        "the database's encoding is {encoding}, which lacks characters that other systems may send, and a \
         message that cannot be stored would stop its consumer: the tables of the {line} need a database \
         made with ENCODING 'UTF8' (the outbox alone works in any: `relay migrate up --line outbox`)"
    )]
    Encoding {
        /// The line.
        line: Line,
        /// The encoding.
        encoding: String,
    },
    /// Another migration did not end in time. Nothing was applied.
    #[error(
        "another migration has not ended within {}s: {holder}; try again when it has ended, or end its \
         session with pg_terminate_backend if its client has disappeared",
        .waited.as_secs()
    )]
    Busy {
        /// The session that holds the lock of the migrations, as far as this role may see it.
        holder: String,
        /// How long this migrator waited.
        waited: Duration,
    },
    /// The database refused a statement or became unavailable. A refused migration leaves nothing
    /// behind.
    #[error("the database could not {what}")]
    Database {
        /// The step that failed.
        what: String,
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl MigrateError {
    pub(crate) fn database(what: impl Into<String>) -> impl FnOnce(sqlx::Error) -> Self {
        let what = what.into();
        move |source| Self::Database { what, source: Box::new(source) }
    }

    /// Replaces the error of the first statement that creates something, if the role lacks the
    /// right to.
    pub(crate) fn of_creating(self) -> Self {
        let refusal = match &self {
            Self::Database { source, .. } => source.downcast_ref().and_then(refusal),
            _ => None,
        };
        refusal.map_or(self, |refusal| Self::MayNotCreate { refusal })
    }
}

/// Returns the database's words if it refused a statement because of a right.
fn refusal(error: &sqlx::Error) -> Option<String> {
    let answer = error.as_database_error()?;
    SqlErrorKind::is_denied(error).then(|| answer.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a probe without a login shows no database user. Oracle: the part of the reason that
    /// probes show, which is the one after its last semicolon; the log has the whole statement.
    #[test]
    fn the_remedy_for_an_unusable_schema_names_no_user() {
        let error =
            SchemaError::Unusable { schema: String::from("app"), role: String::from("billing_owner") };
        let text = error.to_string();
        assert!(text.contains("`GRANT USAGE ON SCHEMA app TO billing_owner`"), "{text}");
        let remedy = text.rsplit_once("; ").map(|(_, remedy)| remedy).unwrap();
        assert!(remedy.contains("`relay migrate roles`"), "{remedy}");
        assert!(!remedy.contains("billing_owner") && !remedy.contains(" app"), "{remedy}");
    }
}
