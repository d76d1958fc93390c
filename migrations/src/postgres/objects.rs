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

/// The first table whose rows are hidden from this role, or from its owner, whose rights some
/// functions have. `row_security_active` knows owners, superusers and BYPASSRLS, and does not
/// depend on the setting `row_security`.
const HIDING: &str = "
SELECT format('%I.%I', n.nspname, c.relname), row_security_active(c.oid)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS o ON o.oid = c.relowner
WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND c.relrowsecurity AND (c.relname = ANY($1) OR c.relname = 'outbox_toolkit_migration')
    AND (row_security_active(c.oid) OR (c.relforcerowsecurity AND NOT o.rolsuper AND NOT o.rolbypassrls))
ORDER BY c.relname LIMIT 1";

/// The tables with row-level security, whoever it applies to.
const WITH_ROW_SECURITY: &str = "
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND c.relrowsecurity AND c.relname = ANY($1)
ORDER BY c.relname";

/// Indexes that are gone or not valid, and partitions that are not attached.
const MISSING: &str = "
SELECT 'index ' || wanted.name FROM unnest($1) AS wanted (name) WHERE NOT EXISTS (
    SELECT FROM pg_class AS c JOIN pg_index AS i ON i.indexrelid = c.oid AND i.indisvalid
    WHERE c.relname = wanted.name AND c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = '{schema}outbox_toolkit_migration'::regclass))
UNION ALL
SELECT 'partition ' || wanted.name FROM unnest($2) AS wanted (name) WHERE NOT EXISTS (
    SELECT FROM pg_class AS c WHERE c.relispartition
        AND c.relname = wanted.name AND c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = '{schema}outbox_toolkit_migration'::regclass))
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
    let hiding: Option<(String, bool)> = sqlx::query_as(&Template::new(HIDING).schema(schema).render())
        .bind(names(known, "TABLE {schema}"))
        .fetch_optional(&mut *connection)
        .await
        .map_err(MigrateError::database("look for row-level security"))?;
    if let Some((table, is_of_this_role)) = hiding {
        return Ok(Some(if is_of_this_role {
            SchemaError::RowSecurity { table }
        } else {
            SchemaError::ForcedRowSecurity { table }
        }));
    }
    astray(connection, schema, line, known).await
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
    let names = names(known, "INDEX ").into_iter();
    names.filter(|name| name.starts_with(line.as_str())).collect()
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
        }
        let known = Line::Outbox.migrations(Dialect::Postgres);
        let segments: Vec<String> = (0..8).map(|number| format!("outbox_message_{number}")).collect();
        assert_eq!(partitions(known), segments);
    }
}
