//! The catalog of SQLite as text.

use sqlx::SqliteConnection;

use crate::error::MigrateError;
use crate::line::Line;

pub(crate) async fn describe(connection: &mut SqliteConnection, line: Line) -> Result<String, MigrateError> {
    // The catalog keeps the text of each CREATE statement, with all defaults and constraints.
    // Indexes of constraints have no text.
    let objects: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "SELECT type, name, sql FROM sqlite_schema WHERE tbl_name LIKE ?1 ESCAPE '\\' \
         ORDER BY tbl_name, type DESC, name",
    )
    .bind(format!("{line}\\_%"))
    .fetch_all(connection)
    .await
    .map_err(MigrateError::database("describe its schema"))?;
    let mut text = String::new();
    for (kind, name, sql) in objects {
        let sql = sql.map(|sql| without_comments(&sql)).unwrap_or_else(|| String::from("(of a constraint)"));
        text.push_str(&format!("# {kind} {name}\n{sql}\n\n"));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}

/// Removes comments and the alignment of columns, which are not part of the schema.
fn without_comments(sql: &str) -> String {
    let line = |line: &str| {
        let code = line.split("--").next().unwrap_or_default();
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    sql.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
