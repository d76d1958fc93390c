//! The versions of the schema's lines.

use migrations::{Backend, Identifier, Line, MigrateError, Migrator};
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
        let status = migrator.status(connection).await;
        let status = status.map_err(|error| Unreachable::from(LogError::from(error)))?;
        let problem = match migrator.check(connection).await {
            Ok(()) => None,
            Err(MigrateError::Schema(error)) => Some(error.to_string()),
            Err(error) => return Err(LogError::from(error).into()),
        };
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
