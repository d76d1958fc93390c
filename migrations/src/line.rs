//! The ordered versions of one crate's tables.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::backend::Dialect;

/// A line of migrations: the tables of one crate, versioned on their own, so that a service that
/// only consumes never gets producer tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Line {
    /// The tables of the `outbox` crate and the relay.
    Outbox,
    /// The tables of the inbox in the `inbox` crate.
    Inbox,
    /// The tables of idempotency keys in the `inbox` crate.
    Idempotency,
    /// The tables of the `saga` crate.
    Saga,
}

/// A word that names no line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of migrations; known are outbox, inbox, idempotency and saga")]
pub struct UnknownLine(String);

impl Line {
    /// All lines.
    pub const ALL: [Self; 4] = [Self::Outbox, Self::Inbox, Self::Idempotency, Self::Saga];

    /// Returns the lower-case word for the command line and the bookkeeping table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Inbox => "inbox",
            Self::Idempotency => "idempotency",
            Self::Saga => "saga",
        }
    }

    /// Returns the migrations for a dialect, in the order of their versions.
    #[must_use]
    pub fn migrations(self, dialect: Dialect) -> &'static [Migration] {
        match (dialect, self) {
            (Dialect::Postgres, Self::Outbox) => POSTGRES_OUTBOX,
            (Dialect::Postgres, Self::Inbox) => POSTGRES_INBOX,
            (Dialect::Postgres, Self::Idempotency) => POSTGRES_IDEMPOTENCY,
            (Dialect::Postgres, Self::Saga) => POSTGRES_SAGA,
            (Dialect::Sqlite, Self::Outbox) => SQLITE_OUTBOX,
            (Dialect::Sqlite, Self::Inbox) => SQLITE_INBOX,
            (Dialect::Sqlite, Self::Idempotency) => SQLITE_IDEMPOTENCY,
            (Dialect::Sqlite, Self::Saga) => SQLITE_SAGA,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Line {
    type Err = UnknownLine;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|line| line.as_str() == word)
            .ok_or_else(|| UnknownLine(word.chars().take(64).collect()))
    }
}

/// One step of a line. Released steps are never edited: a change is a new step.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// 1, 2, 3, … without gaps.
    pub version: i32,
    /// Its effect, in a few words.
    pub name: &'static str,
    /// The SQL, with `{schema}` before every name.
    pub template: &'static str,
}

impl Migration {
    /// Returns the SHA-256 of the template, in hexadecimal: the same for every schema.
    #[must_use]
    pub fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.template))
    }

    /// Whether a migration that was applied with this checksum is this step.
    #[must_use]
    pub fn is(&self, checksum: &str) -> bool {
        self.checksum() == checksum || SAME.contains(&(self.name, checksum))
    }
}

/// Names and earlier checksums of steps in which only a comment or a text has changed since.
const SAME: [(&str, &str); 2] = [
    // They held a character that databases in encodings other than UTF-8 lack.
    ("0001_keys", "dac71086dd7388d09dd8a84553bc0950b8f6bb4ec4e70a08a217f59412a77651"),
    ("0002_days", "5d9f9fd8eb43c29c2e2893eda6013f90de4e1b0c9c2587c5b9f5bead31dc0d19"),
];

macro_rules! line {
    ($dialect:literal, $line:literal: $($version:literal $name:literal),* $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            template: include_str!(concat!("../sql/", $dialect, "/", $line, "/", $name, ".sql")),
        }),*]
    };
}

static POSTGRES_OUTBOX: &[Migration] = line!("postgres", "outbox": 1 "0001_log", 2 "0002_least_privilege", 3 "0003_segments", 4 "0004_nodes", 5 "0005_histories", 6 "0006_parked", 7 "0007_retention_histories", 8 "0008_audit_selection", 9 "0009_pauses", 10 "0010_shared_ids", 11 "0011_bytewise", 12 "0012_bounds", 13 "0013_audit", 14 "0014_plain_sql", 15 "0015_decisions");
static SQLITE_OUTBOX: &[Migration] = line!("sqlite", "outbox": 1 "0001_log", 2 "0002_retention", 3 "0003_nodes", 4 "0004_parked", 5 "0005_audit_selection", 6 "0006_pauses", 7 "0007_lease_length", 8 "0008_audit", 9 "0009_decisions");
static POSTGRES_INBOX: &[Migration] = line!("postgres", "inbox": 1 "0001_inbox", 2 "0002_days", 3 "0003_chunks", 4 "0004_decisions", 5 "0005_days_give_way", 6 "0006_canonical_json", 7 "0007_audit_selection", 8 "0008_held_keys", 9 "0009_minutes", 10 "0010_bytewise", 11 "0011_sources", 12 "0012_in_hand", 13 "0013_days_are_emptied", 14 "0014_lookups", 15 "0015_audit_retention");
static SQLITE_INBOX: &[Migration] = line!("sqlite", "inbox": 1 "0001_inbox", 2 "0002_chunks", 3 "0003_decisions", 4 "0004_canonical_json", 5 "0005_audit_selection", 6 "0006_held_keys", 7 "0007_minutes", 8 "0008_sources", 9 "0009_in_hand");
static POSTGRES_IDEMPOTENCY: &[Migration] = line!("postgres", "idempotency": 1 "0001_keys", 2 "0002_index_scans", 3 "0003_new_keys", 4 "0004_one_table", 5 "0005_audit", 6 "0006_bytewise", 7 "0007_abandoned", 8 "0008_audit_retention");
static SQLITE_IDEMPOTENCY: &[Migration] =
    line!("sqlite", "idempotency": 1 "0001_keys", 2 "0002_one_table", 3 "0003_audit");
static POSTGRES_SAGA: &[Migration] = line!("postgres", "saga": 1 "0001_sagas", 2 "0002_open", 3 "0003_bytewise", 4 "0004_audit_retention", 5 "0005_secret");
static SQLITE_SAGA: &[Migration] = line!("sqlite", "saga": 1 "0001_sagas", 2 "0002_open", 3 "0003_secret");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_ascend_from_one_without_gaps_and_files_carry_them() {
        for (line, dialect) in Line::ALL.into_iter().flat_map(|l| Dialect::ALL.map(|d| (l, d))) {
            for (expected, migration) in (1..).zip(line.migrations(dialect)) {
                assert_eq!(migration.version, expected, "{line} {dialect}");
                assert!(migration.name.starts_with(&format!("{expected:04}_")), "{}", migration.name);
            }
        }
    }

    /// A database in an encoding other than UTF-8 lacks most other characters, even in comments.
    #[test]
    fn templates_are_ascii() {
        for (line, dialect) in Line::ALL.into_iter().flat_map(|l| Dialect::ALL.map(|d| (l, d))) {
            for migration in line.migrations(dialect) {
                let other = migration.template.chars().find(|c| !c.is_ascii());
                assert_eq!(other, None, "{line} {dialect} {}", migration.name);
            }
        }
    }

    #[test]
    fn a_step_is_known_by_the_checksum_of_before() {
        for (name, checksum) in SAME {
            let mut all = Line::ALL.into_iter().flat_map(|line| line.migrations(Dialect::Postgres));
            let step = all.find(|step| step.name == name).unwrap();
            assert_ne!(step.checksum(), checksum, "{name}");
            assert!(step.is(checksum) && step.is(&step.checksum()) && !step.is(""), "{name}");
        }
    }

    #[test]
    fn templates_hold_no_placeholder_but_the_schema() {
        for (line, dialect) in Line::ALL.into_iter().flat_map(|l| Dialect::ALL.map(|d| (l, d))) {
            for migration in line.migrations(dialect) {
                let rest = migration.template.replace("{schema}", "");
                let named = |part: &&str| part.starts_with(|c: char| c.is_ascii_lowercase());
                assert_eq!(rest.split('{').skip(1).find(named), None, "{line} {dialect} {}", migration.name);
            }
        }
    }
}
