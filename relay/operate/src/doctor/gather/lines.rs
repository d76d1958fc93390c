//! The versions of the schema's lines.

use migrations::{Backend, Dialect, Identifier, Line, MigrateError, Migrator, SchemaError};
use outbox_log::LogError;

use super::Unreachable;
use crate::doctor::facts::LineFacts;

/// Returns every line.
pub(super) async fn lines<DB: Backend>(
    connection: &mut DB::Connection,
    schema: Option<&Identifier>,
) -> Result<Vec<LineFacts>, Unreachable> {
    let mut lines = Vec::new();
    for line in Line::ALL {
        let migrator = Migrator::<DB>::new(line).schema(schema.cloned());
        let problem = match migrator.check(connection).await {
            Ok(()) => None,
            Err(MigrateError::Schema(error @ SchemaError::Unusable { .. })) => {
                lines.push(unknown(line, DB::DIALECT, error.to_string()));
                continue;
            }
            Err(MigrateError::Schema(error)) => Some(error.to_string()),
            Err(error) => return Err(LogError::from(error).into()),
        };
        let status = migrator.status(connection).await;
        let status = status.map_err(|error| Unreachable::from(LogError::from(error)))?;
        let row_security = migrator.with_row_security(connection).await.map_err(LogError::from)?;
        let missing = if status.database_version() == status.build_version() {
            migrator.missing(connection).await.map_err(LogError::from)?
        } else {
            Vec::new()
        };
        lines.push(LineFacts {
            line: line.as_str(),
            version: status.database_version(),
            version_needed: status.build_version(),
            problem,
            row_security,
            missing,
        });
    }
    Ok(lines)
}

/// Returns the facts of a line whose tables this role may not name.
fn unknown(line: Line, dialect: Dialect, problem: String) -> LineFacts {
    let version_needed = line.migrations(dialect).last().map_or(0, |migration| migration.version);
    LineFacts {
        line: line.as_str(),
        version: 0,
        version_needed,
        problem: Some(problem),
        missing: Vec::new(),
        row_security: Vec::new(),
    }
}
