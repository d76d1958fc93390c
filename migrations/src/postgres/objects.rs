//! Faults of tables and functions that the versions of a line do not show: somebody changed them by
//! hand, and they then lose messages without an error.
//!
//! * Row-level security hides rows from a role. A relay would pass them, an inbox would not know
//!   that it has applied them.
//! * `ALTER SCHEMA ... RENAME` leaves the former name in the bodies of functions. They fail,
//!   or use the tables of whoever has that name now.

use sqlx::PgConnection;

use crate::error::{MigrateError, SchemaError};
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::sql::Template;

/// Tables whose rows are hidden from this role, or from its owner, whose rights some functions
/// have, and then those that a crash empties although they are not meant to be.
/// `row_security_active` knows owners, superusers and BYPASSRLS, and does not depend on the setting
/// `row_security`.
const LOSING: &str = "
SELECT format('%I.%I', n.nspname, c.relname), told.fault
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS o ON o.oid = c.relowner
    CROSS JOIN LATERAL (SELECT CASE
        WHEN c.relrowsecurity AND row_security_active(c.oid) THEN 'hides'
        WHEN c.relrowsecurity AND c.relforcerowsecurity AND NOT o.rolsuper AND NOT o.rolbypassrls
            THEN 'hides from its owner'
        WHEN c.relpersistence <> 'p' AND c.relname <> ALL($2) THEN 'unlogged' END) AS told (fault)
WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND c.relkind IN ('r', 'p') AND (c.relname = ANY($1) OR c.relname = 'outbox_toolkit_migration')
    AND told.fault IS NOT NULL
ORDER BY told.fault = 'unlogged', c.relname";

/// A schema with tables that this role may not use. Its tables cannot be named, and a `search_path`
/// leaves it out.
const UNUSABLE: &str = "
SELECT quote_ident(n.nspname), quote_ident(current_user)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'outbox_toolkit_migration' AND NOT has_schema_privilege(n.oid, 'USAGE')
    AND n.nspname = ANY(CASE WHEN $1::text IS NOT NULL THEN ARRAY[$1] ELSE string_to_array(
        replace(replace(current_setting('search_path'), '\"', ''), '$user', current_user), ', ') END)
LIMIT 1";

/// The tables with row-level security, whoever it applies to.
const WITH_ROW_SECURITY: &str = "
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND c.relrowsecurity AND c.relname = ANY($1)
ORDER BY c.relname";

/// Indexes that are gone or not valid, and partitions that are not attached. Days of an inbox are
/// made later: a function creates and attaches each in one transaction.
const MISSING: &str = "
WITH here AS (SELECT c.oid, c.relname, c.relkind, c.relispartition FROM pg_class AS c
    WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = '{schema}outbox_toolkit_migration'::regclass))
SELECT 'index ' || wanted.name FROM unnest($1) AS wanted (name) WHERE NOT EXISTS (
    SELECT FROM here AS c JOIN pg_index AS i ON i.indexrelid = c.oid AND i.indisvalid AND i.indisready
    WHERE c.relname = wanted.name)
UNION ALL
SELECT 'partition ' || wanted.name FROM unnest($2) AS wanted (name) WHERE NOT EXISTS (
    SELECT FROM here AS c WHERE c.relispartition AND c.relname = wanted.name)
UNION ALL
SELECT 'partition ' || c.relname FROM here AS c
WHERE $3 = 'inbox' AND c.relname ~ '^inbox_message_[0-9]{8}$' AND c.relkind = 'r' AND NOT c.relispartition
ORDER BY 1";

/// The first function that uses the line's tables in another schema, and that schema. Each line has
/// such functions: those with the rights of their owner name the schema of every table.
const ASTRAY: &str = "
SELECT format('%I.%I', n.nspname, p.proname), named.other[1]
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace CROSS JOIN LATERAL regexp_matches(
    p.prosrc, '(\"[^\"]+\"|[[:alpha:]_][[:alnum:]_$]*)[.]' || $2, 'g') AS named (other)
WHERE p.pronamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND p.proname = ANY($1) AND named.other[1] NOT IN (quote_ident(n.nspname), '\"' || n.nspname || '\"')
ORDER BY p.proname LIMIT 1";

/// Makes the functions name the schema in which they are. `search_path` of a function counts only
/// where its body names no schema.
const BRING_HOME: &str = "
DO $bring$
DECLARE
    home       regnamespace :=
        (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_toolkit_migration'::regclass);
    definition text;
    function   regprocedure;
BEGIN
    FOR function, definition IN
        SELECT p.oid::regprocedure, pg_get_functiondef(p.oid) FROM pg_proc AS p
        WHERE p.pronamespace = home AND p.proname = ANY(current_setting('outbox.functions')::text[])
    LOOP
        EXECUTE regexp_replace(definition,
            '(\"[^\"]+\"|[[:alpha:]_][[:alnum:]_$]*)[.](' || current_setting('outbox.line') || ')',
            replace(home::text, '\\', '\\\\') || '.\\2', 'g');
        IF EXISTS (SELECT FROM pg_proc AS p, unnest(p.proconfig) AS c (setting) WHERE p.oid = function
            AND starts_with(c.setting, 'search_path=') AND c.setting <> 'search_path=pg_catalog, pg_temp')
        THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %s', function, home);
        END IF;
    END LOOP;
END
$bring$";

/// Returns the first fault of a line's tables and functions.
pub(super) async fn fault(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Option<SchemaError>, MigrateError> {
    let losing: Vec<(String, String)> = sqlx::query_as(&Template::new(LOSING).schema(schema).render())
        .bind(names(known, "TABLE {schema}"))
        .bind(names(known, "UNLOGGED TABLE {schema}"))
        .fetch_all(&mut *connection)
        .await
        .map_err(MigrateError::database("look for row-level security"))?;
    for (table, fault) in losing {
        match fault.as_str() {
            "hides" => return Ok(Some(SchemaError::RowSecurity { table })),
            "hides from its owner" => return Ok(Some(SchemaError::ForcedRowSecurity { table })),
            // A database for tests may be meant to be like this.
            _ => tracing::warn!(
                table,
                "a crash of the server empties this table, which is unlogged; run ALTER TABLE … SET LOGGED"
            ),
        }
    }
    astray(connection, schema, line, known).await
}

/// Returns the schema with the tables, if this role may not use it.
pub(super) async fn unusable(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
) -> Result<Option<SchemaError>, MigrateError> {
    let found: Option<(String, String)> = sqlx::query_as(UNUSABLE)
        .bind(schema.map(Identifier::as_str))
        .fetch_optional(connection)
        .await
        .map_err(MigrateError::database("look for schemas that the role may not use"))?;
    Ok(found.map(|(schema, role)| SchemaError::Unusable { schema, role }))
}

/// Returns the line's tables with row-level security, with their schema.
pub(super) async fn with_row_security(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    known: &[Migration],
) -> Result<Vec<String>, MigrateError> {
    sqlx::query_scalar(&Template::new(WITH_ROW_SECURITY).schema(schema).render())
        .bind(names(known, "TABLE {schema}"))
        .fetch_all(connection)
        .await
        .map_err(MigrateError::database("look for row-level security"))
}

/// Returns the line's indexes and partitions that the migrations made and that do not work.
pub(super) async fn missing(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Vec<String>, MigrateError> {
    sqlx::query_scalar(&Template::new(MISSING).schema(schema).render())
        .bind(indexes(line, known))
        .bind(partitions(known))
        .bind(line.as_str())
        .fetch_all(connection)
        .await
        .map_err(MigrateError::database("look for its indexes and partitions"))
}

/// Makes functions that name another schema name their own. Returns whether there were any.
pub(super) async fn bring_home(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<bool, MigrateError> {
    if astray(connection, schema, line, known).await?.is_none() {
        return Ok(false);
    }
    let failed = || MigrateError::database(format!("make the functions of the {line} name their schema"));
    // A block has no parameters.
    sqlx::query(
        "SELECT set_config('outbox.functions', $1::text[]::text, true), set_config('outbox.line', $2, true)",
    )
    .bind(names(known, "FUNCTION {schema}"))
    .bind(line.as_str())
    .execute(&mut *connection)
    .await
    .map_err(failed())?;
    let statement = Template::new(BRING_HOME).schema(schema).render();
    sqlx::raw_sql(&statement).execute(connection).await.map_err(failed())?;
    Ok(true)
}

async fn astray(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Option<SchemaError>, MigrateError> {
    let found: Option<(String, String)> = sqlx::query_as(&Template::new(ASTRAY).schema(schema).render())
        .bind(names(known, "FUNCTION {schema}"))
        .bind(line.as_str())
        .fetch_optional(connection)
        .await
        .map_err(MigrateError::database("read the functions of its schema"))?;
    Ok(found.map(|(function, named)| SchemaError::OtherSchema { line, function, named }))
}

/// Returns the names that follow a text in the migrations, such as those of the tables. A name may
/// be repeated.
fn names(known: &[Migration], before: &str) -> Vec<String> {
    let named = |migration: &Migration| {
        let rests = migration.template.split(before).skip(1);
        rests
            .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
            .collect::<Vec<String>>()
    };
    known.iter().flat_map(named).collect()
}

fn indexes(line: Line, known: &[Migration]) -> Vec<String> {
    let own = names(known, "INDEX ").into_iter().filter(|name| name.starts_with(line.as_str()));
    own.chain(keys(known)).chain(partitions(known).iter().flat_map(|part| keys_of_segment(part))).collect()
}

/// Returns the indexes of keys that have names.
fn keys(known: &[Migration]) -> Vec<String> {
    let named = |migration: &Migration| {
        let constraints = migration.template.split("CONSTRAINT ").skip(1);
        let keys = constraints.filter_map(|rest| rest.split_once(" PRIMARY KEY ("));
        let names = keys.map(|(name, _)| name.to_owned());
        names.filter(|name| !name.contains(char::is_whitespace)).collect::<Vec<_>>()
    };
    known.iter().flat_map(named).collect()
}

/// Returns the indexes of a segment's keys, which have the names that PostgreSQL gives.
fn keys_of_segment(segment: &str) -> [String; 2] {
    [format!("{segment}_pkey"), format!("{segment}_message_id_key")]
}

fn partitions(known: &[Migration]) -> Vec<String> {
    let made = |migration: &Migration| {
        let rests = migration.template.split("TABLE {schema}").skip(1);
        let named = rests.filter_map(|rest| Some(rest.split_once(" PARTITION OF {schema}")?.0));
        named.filter(|name| !name.contains(char::is_whitespace)).map(str::to_owned).collect::<Vec<_>>()
    };
    known.iter().flat_map(made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Dialect;

    #[test]
    fn tables_and_functions_are_those_of_the_migrations() {
        for (line, table, function) in [
            (Line::Outbox, "outbox_message", "outbox_enqueue_json"),
            (Line::Inbox, "inbox_message", "inbox_create_days"),
            (Line::Idempotency, "idempotency_key", "idempotency_purge_audit"),
            (Line::Saga, "saga_step", "saga_purge_audit"),
        ] {
            let known = line.migrations(Dialect::Postgres);
            assert!(names(known, "TABLE {schema}").iter().any(|name| name == table), "{line}");
            let functions = names(known, "FUNCTION {schema}");
            assert!(functions.iter().any(|name| name == function), "{line}");
            assert!(functions.iter().all(|name| name.starts_with(line.as_str())), "{functions:?}");
            assert!(!indexes(line, known).is_empty(), "{line}");
            let unlogged = names(known, "UNLOGGED TABLE {schema}");
            assert_eq!(unlogged, if line == Line::Outbox { vec!["outbox_server_run"] } else { vec![] });
        }
        let known = Line::Outbox.migrations(Dialect::Postgres);
        let segments: Vec<String> = (0..8).map(|number| format!("outbox_message_{number}")).collect();
        assert_eq!(partitions(known), segments);
        let indexes = indexes(Line::Outbox, known);
        for index in ["outbox_relay_pkey", "outbox_message_7_pkey", "outbox_message_0_message_id_key"] {
            assert!(indexes.iter().any(|name| name == index), "{index}: {indexes:?}");
        }
    }
}
