//! Faults of tables and functions that the versions of a line do not show: they were changed by
//! hand, and now lose messages without an error.
//!
//! * Row-level security hides rows from a role. A relay would skip them, and an inbox would not
//!   know that it has applied them.
//! * `ALTER SCHEMA ... RENAME` leaves the former name in the bodies of functions. They fail, or use
//!   the tables of the schema that has that name now.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use crate::error::{MigrateError, SchemaError};
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::sql::Template;

/// The faults of a line's tables and functions:
///
/// * tables whose rows are hidden from this role, or from its owner, whose rights some functions
///   have. `row_security_active` knows owners, superusers and BYPASSRLS, and does not depend on the
///   setting `row_security`;
/// * functions that use the line's tables in another schema, and that schema. Each line has such
///   functions: those with the rights of their owner name the schema of every table. Names are
///   compared without their quotes, which depend on the settings of the session that wrote them;
/// * tables and partitions that a crash empties although they are not meant to be.
const FAULTS: &str = "
WITH home AS (SELECT n.oid, n.nspname FROM pg_class AS b JOIN pg_namespace AS n ON n.oid = b.relnamespace
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration')),
    tables AS (SELECT c.*, home.nspname FROM home JOIN pg_class AS c ON c.relnamespace = home.oid
        WHERE c.relkind IN ('r', 'p') AND c.relname = ANY($1))
SELECT found.fault, found.subject, found.named FROM (
    SELECT 1 AS place, told.fault, format('%I.%I', t.nspname, t.relname) AS subject, NULL AS named
    FROM tables AS t JOIN pg_roles AS o ON o.oid = t.relowner CROSS JOIN LATERAL (SELECT CASE
        WHEN t.relrowsecurity AND row_security_active(t.oid) THEN 'hides'
        WHEN t.relrowsecurity AND t.relforcerowsecurity AND NOT o.rolsuper AND NOT o.rolbypassrls
            THEN 'hides from its owner' END) AS told (fault)
    WHERE told.fault IS NOT NULL
    UNION ALL
    SELECT DISTINCT 2, 'astray', format('%I.%I', home.nspname, p.proname), used.schema
    FROM home JOIN pg_proc AS p ON p.pronamespace = home.oid AND p.proname = ANY($3)
        CROSS JOIN LATERAL regexp_matches(p.prosrc, {named} || $4, 'g') AS named (part)
        CROSS JOIN LATERAL (SELECT {unquoted}) AS used (schema)
    WHERE used.schema <> home.nspname
    UNION ALL
    SELECT 3, 'unlogged', format('%I.%I', n.nspname, c.relname), NULL
    FROM (SELECT t.oid FROM tables AS t
        UNION SELECT i.inhrelid FROM tables AS t JOIN pg_inherits AS i ON i.inhparent = t.oid) AS ours
        JOIN pg_class AS c ON c.oid = ours.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relpersistence <> 'p' AND c.relname <> ALL($2)) AS found
ORDER BY found.place, found.subject, found.named";

/// The name of a schema before that of a table or function, with its quotes.
const NAMED: &str = "'(\"(?:[^\"]|\"\")+\"|[[:alpha:]_][[:alnum:]_$]*)[.]'";

/// The first part that was found, without its quotes.
const UNQUOTED: &str = "CASE WHEN starts_with(named.part[1], '\"')
    THEN replace(substr(named.part[1], 2, length(named.part[1]) - 2), '\"\"', '\"')
    ELSE lower(named.part[1]) END";

/// A schema with tables that this role may not use. Its tables cannot be named, and a `search_path`
/// leaves it out.
const UNUSABLE: &str = "
SELECT quote_ident(n.nspname), quote_ident(current_user)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'outbox_toolkit_migration' AND NOT has_schema_privilege(n.oid, 'USAGE')
    AND n.nspname = ANY(CASE WHEN $1::text IS NOT NULL THEN ARRAY[$1] ELSE string_to_array(
        replace(replace(current_setting('search_path'), '\"', ''), '$user', current_user), ', ') END)
LIMIT 1";

/// The tables with row-level security, even if it exempts this role.
const WITH_ROW_SECURITY: &str = "
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
        WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))
    AND c.relrowsecurity AND c.relname = ANY($1)
ORDER BY c.relname";

/// Whether all of these tables are in the schema of the bookkeeping table.
const HAS_TABLES: &str = "
SELECT bool_and(EXISTS (
    SELECT FROM pg_class AS c WHERE c.relname = wanted.name AND c.relkind IN ('r', 'p')
        AND c.relnamespace = (SELECT b.relnamespace FROM pg_class AS b
            WHERE b.oid = to_regclass('{schema}outbox_toolkit_migration'))))
FROM unnest($1::text[]) AS wanted (name)";

/// Indexes that are missing or not valid, partitions that are not attached, and triggers ($4) that
/// are missing or do not fire, those of $5 in every session. Days of an inbox are made later: a
/// function creates and attaches each in one transaction.
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
UNION ALL
SELECT 'trigger ' || wanted.name FROM unnest($4) AS wanted (name) WHERE NOT EXISTS (
    SELECT FROM here AS c JOIN pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = wanted.name
    WHERE NOT c.relispartition)
UNION ALL
SELECT 'trigger ' || t.tgname || ' of ' || c.relname FROM here AS c JOIN pg_trigger AS t ON t.tgrelid = c.oid
WHERE t.tgname = ANY($4) AND t.tgenabled <> 'A' AND (t.tgenabled <> 'O' OR t.tgname = ANY($5))
ORDER BY 1";

/// Whether this role may read the days of the inbox.
const READS_DAYS: &str =
    "SELECT coalesce(has_table_privilege(to_regclass('{schema}inbox_day'), 'SELECT'), false)";

/// Days of the inbox that were created and have disappeared from its schema.
const LOST_DAYS: &str = "
SELECT 'partition ' || lost.name FROM {schema}inbox_day AS d
    CROSS JOIN LATERAL (SELECT 'inbox_message_' || to_char(d.day, 'YYYYMMDD')) AS lost (name)
WHERE d.day <= (clock_timestamp() AT TIME ZONE 'UTC')::date + 2 AND NOT EXISTS (
    SELECT FROM pg_class AS c JOIN pg_class AS home ON home.oid = '{schema}inbox_message'::regclass
    WHERE c.relname = lost.name AND (c.relnamespace = home.relnamespace OR EXISTS (
        SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid AND i.inhparent = home.oid)))
ORDER BY d.day";

/// Sets the schema in the functions to their own, in place of the former names. The `search_path`
/// of a function counts only where its body names no schema; it keeps the other schemas, such as
/// those of extensions. A schema that was found as `$user` has another name now.
const BRING_HOME: &str = "
DO $bring$
DECLARE
    home       regnamespace :=
        (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_toolkit_migration'::regclass);
    names      text[] := current_setting('outbox.former')::text[];
    is_named   text := {named} || '(' || current_setting('outbox.line') || ')';
    definition text;
    body       text;
    function   regprocedure;
    path       text;
    new_path   text;
    is_lost    boolean;
BEGIN
    FOR function, definition, body, path IN
        SELECT p.oid::regprocedure, pg_get_functiondef(p.oid), p.prosrc,
            (SELECT substr(c.setting, length('search_path=') + 1) FROM unnest(p.proconfig) AS c (setting)
            WHERE starts_with(c.setting, 'search_path='))
        FROM pg_proc AS p
        WHERE p.pronamespace = home AND p.proname = ANY(current_setting('outbox.functions')::text[])
    LOOP
        EXECUTE regexp_replace(definition, is_named, replace(home::text, '\\', '\\\\') || '.\\2', 'g');
        SELECT string_agg(CASE WHEN {unquoted} = ANY(names) THEN home::text ELSE named.part[1] END, ', '
                ORDER BY named.place),
            bool_or({unquoted} = '$user') AND NOT bool_or({unquoted} = ANY(names)) AND body !~ is_named
        INTO new_path, is_lost
        FROM regexp_matches(path, {element}, 'g') WITH ORDINALITY AS named (part, place)
        WHERE named.part[1] <> '\"\"';
        IF is_lost THEN
            new_path := home::text || ', ' || new_path;
        END IF;
        IF new_path <> path THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %s', function, new_path);
        END IF;
    END LOOP;
END
$bring$";

/// An element of a `search_path`, with its quotes.
const ELEMENT: &str = "'(\"(?:[^\"]|\"\")*\"|[^\",[:space:]]+)'";

/// A fault of a table or function.
#[derive(Debug)]
struct Fault {
    /// Its kind, as [`FAULTS`] calls it.
    fault: String,
    /// The table or function, with its schema.
    subject: String,
    /// The schema that a function names instead of its own.
    named: Option<String>,
}

/// Returns the first fault of a line's tables and functions.
pub(super) async fn fault(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Option<SchemaError>, MigrateError> {
    for Fault { fault, subject, named } in faults(connection, schema, line, known).await? {
        match fault.as_str() {
            "hides" => return Ok(Some(SchemaError::RowSecurity { table: subject })),
            "hides from its owner" => return Ok(Some(SchemaError::ForcedRowSecurity { table: subject })),
            "astray" => {
                let named = named.unwrap_or_default();
                return Ok(Some(SchemaError::OtherSchema { line, function: subject, named }));
            }
            // A database for tests may be meant to be like this.
            _ => tracing::warn!(
                table = subject,
                "a crash of the server empties this table, which is unlogged; run ALTER TABLE … SET LOGGED"
            ),
        }
    }
    Ok(None)
}

/// Returns the line's tables and partitions that a crash empties, with their schema.
pub(super) async fn unlogged(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Vec<String>, MigrateError> {
    let found = faults(connection, schema, line, known).await?;
    Ok(found.into_iter().filter(|fault| fault.fault == "unlogged").map(|fault| fault.subject).collect())
}

/// Reads the faults of a line's tables and functions, beginning with those that lose messages
/// immediately.
async fn faults(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Vec<Fault>, MigrateError> {
    let statement = Template::new(FAULTS).part("named", NAMED).part("unquoted", UNQUOTED);
    let mut tables = names(known, "TABLE {schema}");
    tables.push(String::from("outbox_toolkit_migration"));
    let found: Vec<(String, String, Option<String>)> = sqlx::query_as(&statement.schema(schema).render())
        .bind(tables)
        .bind(names(known, "UNLOGGED TABLE {schema}"))
        .bind(names(known, "FUNCTION {schema}"))
        .bind(line.as_str())
        .fetch_all(connection)
        .await
        .map_err(MigrateError::database("check the tables and functions of its schema"))?;
    Ok(found.into_iter().map(|(fault, subject, named)| Fault { fault, subject, named }).collect())
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
        .map_err(MigrateError::database("find schemas that the role may not use"))?;
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
        .map_err(MigrateError::database("check for row-level security"))
}

/// Returns whether all of the line's tables exist beside the bookkeeping table.
pub(super) async fn has_tables(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    known: &[Migration],
) -> Result<bool, MigrateError> {
    let found: Option<bool> = sqlx::query_scalar(&Template::new(HAS_TABLES).schema(schema).render())
        .bind(names(known, "\nCREATE TABLE {schema}"))
        .fetch_one(connection)
        .await
        .map_err(MigrateError::database("look up its tables"))?;
    Ok(found.unwrap_or_default())
}

/// Returns the line's indexes, partitions and triggers that no longer work as created.
pub(super) async fn missing(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<Vec<String>, MigrateError> {
    let failed = || MigrateError::database("check its indexes, partitions and triggers");
    let mut missing: Vec<String> = sqlx::query_scalar(&Template::new(MISSING).schema(schema).render())
        .bind(indexes(line, known))
        .bind(partitions(known))
        .bind(line.as_str())
        .bind(names(known, "CREATE TRIGGER "))
        .bind(names(known, "ENABLE ALWAYS TRIGGER "))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed())?;
    if line == Line::Inbox {
        let reads = Template::new(READS_DAYS).schema(schema).render();
        let reads_days: bool =
            sqlx::query_scalar(&reads).fetch_one(&mut *connection).await.map_err(failed())?;
        if reads_days {
            let lost = Template::new(LOST_DAYS).schema(schema).render();
            let lost: Vec<String> = sqlx::query_scalar(&lost).fetch_all(connection).await.map_err(failed())?;
            missing.extend(lost);
        }
    }
    Ok(missing)
}

/// Makes functions that name another schema use their own. Returns whether there were any.
pub(super) async fn bring_home(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
    known: &[Migration],
) -> Result<bool, MigrateError> {
    let found = faults(connection, schema, line, known).await?;
    let former: BTreeSet<String> = found.into_iter().filter_map(|fault| fault.named).collect();
    if former.is_empty() {
        return Ok(false);
    }
    let failed = || MigrateError::database(format!("set the schema in the functions of the {line}"));
    // A block has no parameters.
    sqlx::query(
        "SELECT set_config('outbox.functions', $1::text[]::text, true), set_config('outbox.line', $2, true), \
         set_config('outbox.former', $3::text[]::text, true)",
    )
    .bind(names(known, "FUNCTION {schema}"))
    .bind(line.as_str())
    .bind(Vec::from_iter(former))
    .execute(&mut *connection)
    .await
    .map_err(failed())?;
    let statement = Template::new(BRING_HOME).part("named", NAMED).part("unquoted", UNQUOTED);
    let statement = statement.part("element", ELEMENT).schema(schema).render();
    sqlx::raw_sql(&statement).execute(connection).await.map_err(failed())?;
    Ok(true)
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
        assert!(names(known, "CREATE TRIGGER ").contains(&String::from("outbox_message_xid_is_own")));
        assert!(names(known, "ENABLE ALWAYS TRIGGER ").contains(&String::from("outbox_message_xid_is_own")));
        let indexes = indexes(Line::Outbox, known);
        for index in ["outbox_relay_pkey", "outbox_message_7_pkey", "outbox_message_0_message_id_key"] {
            assert!(indexes.iter().any(|name| name == index), "{index}: {indexes:?}");
        }
    }
}
