//! The catalogs of PostgreSQL as text.

use sqlx::PgConnection;

use crate::error::MigrateError;
use crate::identifier::Identifier;
use crate::line::Line;

/// The section's title, and a query of one text column; `$1` is the pattern of names, `$2` the
/// schema or null.
const SECTIONS: [(&str, &str); 6] = [
    (
        "columns",
        "SELECT format('%s.%s %s%s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                CASE WHEN a.attcollation NOT IN (0, 'pg_catalog.\"default\"'::regcollation)
                    THEN ' COLLATE ' || a.attcollation::regcollation END,
                CASE WHEN a.attnotnull THEN ' NOT NULL' END,
                ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
                CASE a.attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' WHEN 'd' THEN ' IDENTITY' END)
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname LIKE $1
           AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ORDER BY c.relname, a.attnum",
    ),
    (
        "constraints",
        "SELECT format('%s.%s %s', c.relname, k.conname, pg_get_constraintdef(k.oid))
         FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
         WHERE NOT c.relispartition AND c.relname LIKE $1
           AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ORDER BY c.relname, k.conname",
    ),
    (
        "indexes",
        "SELECT format('%s%s', pg_get_indexdef(i.indexrelid), ' -- ' || obj_description(i.indexrelid, 'pg_class'))
         FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
         WHERE NOT c.relispartition AND c.relname LIKE $1
           AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ORDER BY c.relname, x.relname",
    ),
    (
        "partitions",
        "SELECT format('%s by %s%s', c.relname, pg_get_partkeydef(c.oid), ' of ' || (
                    SELECT count(*) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid
                    WHERE i.inhparent = c.oid AND p.relname ~ '_[0-7]$'))
         FROM pg_class c WHERE c.relkind = 'p' AND c.relname LIKE $1
           AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ORDER BY c.relname",
    ),
    (
        "sequences and storage",
        "SELECT format('%s%s%s%s', c.relname, ' cache ' || s.seqcache, ' increment ' || s.seqincrement,
                ' with (' || array_to_string(c.reloptions, ', ') || ')')
         FROM pg_class c LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
         WHERE NOT c.relispartition AND c.relname LIKE $1 AND (s.seqrelid IS NOT NULL OR c.reloptions IS NOT NULL)
           AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ORDER BY c.relname",
    ),
    (
        "functions and triggers",
        "SELECT line FROM (
             SELECT format('%s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid),
                    pg_get_function_result(p.oid)) AS line
             FROM pg_proc p WHERE p.proname LIKE $1
               AND p.pronamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
             UNION ALL
             SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
             WHERE NOT t.tgisinternal AND NOT c.relispartition AND c.relname LIKE $1
               AND c.relnamespace = coalesce(to_regnamespace($2), current_schema()::regnamespace)
         ) AS lines ORDER BY line",
    ),
];

pub(crate) async fn describe(
    connection: &mut PgConnection,
    schema: Option<&Identifier>,
    line: Line,
) -> Result<String, MigrateError> {
    let failed = || MigrateError::database("describe its schema");
    let current: String = match schema {
        Some(schema) => schema.as_str().to_owned(),
        None => sqlx::query_scalar("SELECT coalesce(current_schema(), '')::text")
            .fetch_one(&mut *connection)
            .await
            .map_err(failed())?,
    };
    let mut text = String::new();
    for (title, query) in SECTIONS {
        let lines: Vec<String> = sqlx::query_scalar(query)
            .bind(format!("{line}\\_%"))
            .bind(schema.map(Identifier::quoted))
            .fetch_all(&mut *connection)
            .await
            .map_err(failed())?;
        text.push_str(&format!("# {title}\n"));
        for line in lines {
            // The same text for every schema.
            let line = line.replace(&format!("{current}."), "").replace(&format!("\"{current}\"."), "");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}
