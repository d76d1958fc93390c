//! The migrations of a database compared with those that this build knows. Pure.

use sqlx::types::time::OffsetDateTime;

use crate::error::SchemaError;
use crate::line::{Line, Migration};

/// One row of the bookkeeping table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The version.
    pub version: i32,
    /// The migration's name.
    pub name: String,
    /// The checksum of the script that was run.
    pub checksum: String,
    /// The time of applying, by the database's clock.
    pub applied_at: OffsetDateTime,
}

/// The state of one line in one database.
#[derive(Debug, Clone)]
pub struct Status {
    /// The line.
    pub line: Line,
    /// The migrations that the database has, in the order of versions.
    pub applied: Vec<Applied>,
    /// The migrations that this build knows, in the order of versions.
    pub known: &'static [Migration],
}

impl Status {
    /// Returns the database's version; 0 when nothing was applied.
    #[must_use]
    pub fn database_version(&self) -> i32 {
        self.applied.last().map_or(0, |applied| applied.version)
    }

    /// Returns the version that this build needs.
    #[must_use]
    pub fn build_version(&self) -> i32 {
        self.known.last().map_or(0, |migration| migration.version)
    }

    /// Returns the migrations that are still to be applied.
    ///
    /// # Errors
    /// [`SchemaError::Changed`] when an applied migration differs from this build's,
    /// [`SchemaError::TooNew`] when the database is ahead.
    pub fn pending(&self) -> Result<&'static [Migration], SchemaError> {
        for (applied, known) in self.applied.iter().zip(self.known) {
            if applied.version != known.version || applied.checksum != known.checksum() {
                return Err(SchemaError::Changed {
                    line: self.line,
                    version: applied.version,
                    name: applied.name.clone(),
                });
            }
        }
        self.known.get(self.applied.len()..).ok_or(SchemaError::TooNew {
            line: self.line,
            database: self.database_version(),
            build: self.build_version(),
        })
    }

    /// Checks that this build can work with the database.
    ///
    /// # Errors
    /// [`SchemaError`] describes the problem and names the command that repairs it.
    pub fn check(&self) -> Result<(), SchemaError> {
        if self.pending()?.is_empty() {
            return Ok(());
        }
        let (line, database, build) = (self.line, self.database_version(), self.build_version());
        Err(match database {
            0 => SchemaError::Missing { line },
            _ => SchemaError::TooOld { line, database, build },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KNOWN: &[Migration] = &[
        Migration { version: 1, name: "0001_a", template: "a" },
        Migration { version: 2, name: "0002_b", template: "b" },
    ];

    fn status(templates: &[&'static str]) -> Status {
        let applied = (1..).zip(templates).map(|(version, template)| Applied {
            version,
            name: format!("{version:04}_x"),
            checksum: Migration { version, name: "", template }.checksum(),
            applied_at: OffsetDateTime::UNIX_EPOCH,
        });
        Status { line: Line::Outbox, applied: applied.collect(), known: KNOWN }
    }

    #[test]
    fn every_state_of_a_database_is_told_apart() {
        assert_eq!(status(&["a", "b"]).check(), Ok(()));
        assert_eq!(status(&[]).check(), Err(SchemaError::Missing { line: Line::Outbox }));
        let too_old = SchemaError::TooOld { line: Line::Outbox, database: 1, build: 2 };
        assert!(too_old.to_string().contains("relay migrate up --line outbox"));
        assert_eq!(status(&["a"]).check(), Err(too_old));
        let too_new = SchemaError::TooNew { line: Line::Outbox, database: 3, build: 2 };
        assert!(too_new.to_string().contains("upgrade this program"));
        assert_eq!(status(&["a", "b", "c"]).check(), Err(too_new));
        let changed = SchemaError::Changed { line: Line::Outbox, version: 2, name: "0002_x".into() };
        assert_eq!(status(&["a", "edited"]).check(), Err(changed));
    }

    #[test]
    fn what_is_missing_is_pending() {
        assert_eq!(status(&["a"]).pending().unwrap().len(), 1);
        assert_eq!(status(&[]).pending().unwrap().len(), 2);
    }
}
