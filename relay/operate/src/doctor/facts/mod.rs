//! Facts gathered from databases. The checks use only these plain values.

#[cfg(feature = "postgres")]
mod postgres;

use std::time::Duration;

#[cfg(feature = "postgres")]
pub(crate) use postgres::{
    IdSequence, OpenTransaction, OtherOutbox, PostgresFacts, PreparedTransaction, Slot, Timeline,
};

/// One line of migrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineFacts {
    /// `outbox`, `inbox`, `idempotency`.
    pub(crate) line: &'static str,
    /// The database's version; 0 without tables.
    pub(crate) version: i32,
    /// The version that this program needs.
    pub(crate) version_needed: i32,
    /// The reason why the two do not fit, with the command that helps.
    pub(crate) problem: Option<String>,
    /// Its indexes and partitions that do not work.
    pub(crate) missing: Vec<String>,
    /// Its tables with row-level security.
    pub(crate) row_security: Vec<String>,
}

/// A missing or an excess right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongGrant {
    /// The table, sequence or function; `the schema` for the schema of the tables.
    pub(crate) object: String,
    /// `SELECT`, `UPDATE (result)`, …
    pub(crate) privilege: String,
    /// The statement that grants a missing right; `None` for an excess right.
    pub(crate) remedy: Option<String>,
}

/// The rights of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoleFacts {
    /// `relay`, `producer`, …, or `public` for the rights of every role.
    pub(crate) part: String,
    /// The role's name.
    pub(crate) role: String,
    /// Whether the role exists.
    pub(crate) there: bool,
    /// Whether it is a superuser.
    pub(crate) superuser: bool,
    /// The number of rights that the scripts of roles grant it in this database.
    pub(crate) rights: usize,
    /// The differences from the scripts of roles.
    pub(crate) wrong: Vec<WrongGrant>,
}

/// The names of the roles of `relay migrate roles`. The relay's role is the one that connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleNames {
    /// The role that migrates.
    pub migrator: String,
    /// The role of services that enqueue.
    pub producer: String,
    /// The role of services that consume.
    pub consumer: String,
    /// The role of services that claim idempotency keys.
    pub claimant: String,
    /// The role of services that run sagas.
    pub worker: String,
    /// The role that reads states, ids and names.
    pub observer: String,
}

impl Default for RoleNames {
    /// Returns the default names of `relay migrate roles`.
    fn default() -> Self {
        let roles = migrations::Roles::standard();
        Self {
            migrator: roles.migrator.to_string(),
            producer: roles.producer.to_string(),
            consumer: roles.consumer.to_string(),
            claimant: roles.claimant.to_string(),
            worker: roles.worker.to_string(),
            observer: roles.observer.to_string(),
        }
    }
}

/// The answers of a SQLite file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SqliteFacts {
    /// The file.
    pub(crate) file: String,
    /// `sqlite_version()`.
    pub(crate) version: String,
    /// `journal_mode`.
    pub(crate) journal_mode: String,
    /// The reason why the relay itself refuses this database, if it does.
    pub(crate) refused: Option<String>,
    /// The schema's lines.
    pub(crate) lines: Vec<LineFacts>,
    /// Free bytes on its disk, if known.
    pub(crate) free_bytes: Option<u64>,
    /// Bytes of the file.
    pub(crate) database_bytes: u64,
}

/// The answers of an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InboxFacts {
    /// The consumer.
    pub(crate) consumer: String,
    /// The topics that it applies; if empty, all.
    pub(crate) topics: std::collections::BTreeSet<String>,
    /// How far back it remembers, `None` before its first message, or the reason why it cannot be
    /// read.
    pub(crate) remembers: Result<Option<Duration>, UnreadInbox>,
    /// How far in the future its memory begins, by its own clock; `None` if it has begun.
    pub(crate) begins_in: Option<Duration>,
    /// The partitions of days that it made and that are gone (PostgreSQL).
    pub(crate) lost_days: Vec<String>,
    /// The numbers of its dead letters (PostgreSQL).
    pub(crate) letter_numbers: Option<LetterNumbers>,
}

/// The numbers of dead letters, which are their order where keys are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LetterNumbers {
    /// The last one that the sequence gave out; `None` if this role may not read it.
    pub(crate) last: Option<i64>,
    /// The largest one of an open dead letter; 0 without any.
    pub(crate) largest: i64,
}

/// The reason why an inbox cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadInbox {
    /// The reason.
    pub(crate) reason: String,
    /// Whether it may be temporary.
    pub(crate) unavailable: bool,
}
