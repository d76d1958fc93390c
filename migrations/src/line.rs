//! The ordered versions of one crate's tables.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::backend::Dialect;

/// A line of migrations: the separately versioned tables of one crate. A service that only consumes
/// never gets producer tables.
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

/// A word that is not the name of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of migrations; the lines are outbox, inbox, idempotency and saga")]
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
    /// A short description.
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
}

macro_rules! line {
    ($dialect:literal, $line:literal: $($version:literal $name:literal),* $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            template: include_str!(concat!("../sql/", $dialect, "/", $line, "/", $name, ".sql")),
        }),*]
    };
}

static POSTGRES_OUTBOX: &[Migration] = line!("postgres", "outbox": 1 "0001_outbox");
static POSTGRES_INBOX: &[Migration] = line!("postgres", "inbox": 1 "0001_inbox");
static POSTGRES_IDEMPOTENCY: &[Migration] = line!("postgres", "idempotency": 1 "0001_keys");
static POSTGRES_SAGA: &[Migration] = line!("postgres", "saga": 1 "0001_sagas");
static SQLITE_OUTBOX: &[Migration] = line!("sqlite", "outbox": 1 "0001_outbox");
static SQLITE_INBOX: &[Migration] = line!("sqlite", "inbox": 1 "0001_inbox");
static SQLITE_IDEMPOTENCY: &[Migration] = line!("sqlite", "idempotency": 1 "0001_keys");
static SQLITE_SAGA: &[Migration] = line!("sqlite", "saga": 1 "0001_sagas");

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of every migration. After 0.1, a migration adds a line here and no line
    /// changes: a database that has a migration compares its checksum with the program's.
    const RELEASED: &str = "\
c4906553889ad0727dade0b57250151a8272aeb3af4d052eeb4d6358f40ff506 postgres/outbox/0001_outbox
538a3ef05d21e4909be97ad77d2a159ffa07f04358c2a7638e6026ca3694e986 postgres/inbox/0001_inbox
be4e35b4b0adb570393ccdcb12053095e41e43748fdfc397f91313a73d88de9e postgres/idempotency/0001_keys
7ac5c8ace2fa90cf2dc4ad322a34aea426737a22d06c9f10bc201dca57ec3f98 postgres/saga/0001_sagas
9987610ef754760bc61d06e7cdb67585c9e1cd12d4695077e8eb0df4b21f3f99 sqlite/outbox/0001_outbox
339a00a3ce021d5382855e78456737492a3962a60393c03f56979d4f6ce1391a sqlite/inbox/0001_inbox
a974704e141a3a30df5e915e37ec3695ace5b89a45361f75edf3be89c12661c4 sqlite/idempotency/0001_keys
eecba1def441f84cc92c905301cc6b8536125395868b6530426670e28f74f533 sqlite/saga/0001_sagas
";

    #[test]
    fn no_released_migration_has_changed() {
        let mut found = String::new();
        for (dialect, line) in Dialect::ALL.into_iter().flat_map(|d| Line::ALL.map(|l| (d, l))) {
            for migration in line.migrations(dialect) {
                found += &format!("{} {dialect}/{line}/{}\n", migration.checksum(), migration.name);
            }
        }
        assert_eq!(found, RELEASED, "a change of a released schema is a new version");
    }

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
