//! The ordered versions of one crate's tables.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};

use crate::backend::Dialect;

/// A line of migrations: the separately versioned tables of one crate. A service that only consumes
/// never gets producer tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Line {
    /// The tables of the `outbox` crate and the relay.
    Outbox,
    /// The tables of the `inbox` crate.
    Inbox,
    /// The tables of the `idempotency` crate.
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
            (Dialect::Postgres, Self::Outbox) => &POSTGRES_OUTBOX,
            (Dialect::Postgres, Self::Inbox) => &POSTGRES_INBOX,
            (Dialect::Postgres, Self::Idempotency) => &POSTGRES_IDEMPOTENCY,
            (Dialect::Postgres, Self::Saga) => &POSTGRES_SAGA,
            (Dialect::Sqlite, Self::Outbox) => SQLITE_OUTBOX,
            (Dialect::Sqlite, Self::Inbox) => SQLITE_INBOX,
            (Dialect::Sqlite, Self::Idempotency) => SQLITE_IDEMPOTENCY,
            (Dialect::Sqlite, Self::Saga) => SQLITE_SAGA,
        }
    }

    /// Returns the condition under which an old decision may be removed from the line's audit, as
    /// SQL for every database. A redrive that was not carried out yet stays.
    #[doc(hidden)]
    #[must_use]
    pub fn settled(self) -> &'static str {
        if self == Self::Inbox { "done_at IS NOT NULL" } else { "true" }
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
    /// The SQL, with `{schema}` before every name; parts that several lines share are put in.
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

/// The migrations of a line on PostgreSQL, with the shared parts.
type Whole = LazyLock<Vec<Migration>>;

static POSTGRES_OUTBOX: Whole =
    LazyLock::new(|| whole(Line::Outbox, line!("postgres", "outbox": 1 "0001_outbox")));
static POSTGRES_INBOX: Whole =
    LazyLock::new(|| whole(Line::Inbox, line!("postgres", "inbox": 1 "0001_inbox")));
static POSTGRES_IDEMPOTENCY: Whole =
    LazyLock::new(|| whole(Line::Idempotency, line!("postgres", "idempotency": 1 "0001_keys")));
static POSTGRES_SAGA: Whole = LazyLock::new(|| whole(Line::Saga, line!("postgres", "saga": 1 "0001_sagas")));
static SQLITE_OUTBOX: &[Migration] = line!("sqlite", "outbox": 1 "0001_outbox");
static SQLITE_INBOX: &[Migration] = line!("sqlite", "inbox": 1 "0001_inbox");
static SQLITE_IDEMPOTENCY: &[Migration] = line!("sqlite", "idempotency": 1 "0001_keys");
static SQLITE_SAGA: &[Migration] = line!("sqlite", "saga": 1 "0001_sagas");

/// Parts of the SQL for PostgreSQL that several lines share, by their names in braces.
const PARTS: [(&str, &str); 2] = [
    ("{audit_purge}\n", include_str!("../sql/postgres/parts/audit_purge.sql")),
    ("{home}\n", include_str!("../sql/postgres/parts/home.sql")),
];

/// Puts the shared parts into the migrations of a line. They live as long as the program.
fn whole(line: Line, own: &[Migration]) -> Vec<Migration> {
    let put = |migration: &Migration| {
        let parts =
            PARTS.iter().fold(migration.template.to_owned(), |sql, (name, part)| sql.replace(name, part));
        let sql = parts.replace("{line}", line.as_str()).replace("{is_settled}", line.settled());
        Migration { template: sql.leak(), ..*migration }
    };
    own.iter().map(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of every migration. After 0.1, a migration adds a line here and no line
    /// changes: a database that has a migration compares its checksum with the program's.
    const RELEASED: &str = "\
fef57838791d8ee6cc0925f7435aac885f64e761605b33177f2e2e46e3c6ed26 postgres/outbox/0001_outbox
b19be4c670a08e4f373c572fc4d9c99d8ae2b150bbba9efd823351e5e276d420 postgres/inbox/0001_inbox
6896786af327dc2e7cecca70c8eb4f647df0b4675b0153ef63eef0859543428c postgres/idempotency/0001_keys
55a6826b386aeb6c7b48868e53b5136d95c54b0adf194f0f4564a8b5bff92763 postgres/saga/0001_sagas
973fddc2536d555634dffc222f12683ccf8eefa3ae38a4483531915b7996dc2b sqlite/outbox/0001_outbox
f8e69144e8066d2f88c17fad825886d7dbfaf436bea97eabd136e3c57f69926a sqlite/inbox/0001_inbox
596162af521b0e0f786d544b3a91a56ec1228512063df5af8d223bb6779eb2aa sqlite/idempotency/0001_keys
2fd794d21d4568887a4becf203037e44b558f060789b1facfabff8ec8479e03a sqlite/saga/0001_sagas
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
