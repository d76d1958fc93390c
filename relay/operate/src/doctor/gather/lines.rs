//! The versions of the schema's lines.

use migrations::{Backend, Identifier, Line, Migrator};

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
        let status = status.map_err(|error| Unreachable::from(outbox_log::LogError::from(error)))?;
        lines.push(LineFacts {
            line: line.as_str(),
            version: status.database_version(),
            version_needed: status.build_version(),
            problem: status.check().err().map(|error| error.to_string()),
        });
    }
    Ok(lines)
}
