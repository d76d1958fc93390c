//! Facts gathered from databases. The checks use only these plain values.

use std::time::Duration;

/// The clock of a server compared with this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skew {
    /// The difference without its sign.
    pub(crate) by: Duration,
    /// The maximum error of the difference.
    pub(crate) uncertainty: Duration,
}

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

/// An open transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenTransaction {
    /// The process of the server.
    pub(crate) pid: i32,
    /// Its role.
    pub(crate) role: String,
    /// The application name of its client.
    pub(crate) application: String,
    /// `active`, `idle in transaction`, …; empty where it is hidden.
    pub(crate) state: String,
    /// Its age; `None` where it is hidden.
    pub(crate) age: Option<Duration>,
}

/// A prepared transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedTransaction {
    /// Its name.
    pub(crate) gid: String,
    /// Its role.
    pub(crate) role: String,
    /// Its age.
    pub(crate) age: Duration,
}

/// A replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its name.
    pub(crate) name: String,
    /// Whether a client reads it.
    pub(crate) active: bool,
    /// Bytes of log that it retains.
    pub(crate) log_bytes: u64,
    /// The age, in transactions, of the rows that it retains.
    pub(crate) transactions: u64,
}

/// The answers of a PostgreSQL server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PostgresFacts {
    /// `version()`.
    pub(crate) version: String,
    /// `server_version_num`.
    pub(crate) version_number: i32,
    /// Whether it is a replica.
    pub(crate) replica: bool,
    /// Whether it is reached only within this machine.
    pub(crate) local: bool,
    /// The cipher of the connection; `None` if it is not encrypted.
    pub(crate) cipher: Option<String>,
    /// Whether the server's certificate is verified.
    pub(crate) verified: bool,
    /// The role of the queries.
    pub(crate) role: String,
    /// Whether it sees the activity of other sessions.
    pub(crate) sees_sessions: bool,
    /// Whether two connections got the same session of the server, because a pooler shares
    /// sessions.
    pub(crate) shared_session: bool,
    /// The reason why the relay itself refuses this database, if it does.
    pub(crate) refused: Option<String>,
    /// The schema's lines.
    pub(crate) lines: Vec<LineFacts>,
    /// `CACHE` of the outbox's sequence; `None` without tables.
    pub(crate) sequence_cache: Option<i64>,
    /// The timeline of its write-ahead log.
    pub(crate) timeline: Timeline,
    /// `server_encoding`.
    pub(crate) encoding: String,
    /// The recorded and the actual version of the database's collation, if they differ.
    pub(crate) stale_collation: Option<(String, String)>,
    /// `default_transaction_isolation` of a session as the server gives it.
    pub(crate) isolation: String,
    /// Roles and databases with another isolation level.
    pub(crate) isolation_of_others: Vec<String>,
    /// Settings with values that endanger durability: name and value.
    pub(crate) unsafe_settings: Vec<(&'static str, String)>,
    /// Roles and databases whose commits do not wait for the disk.
    pub(crate) asynchronous: Vec<String>,
    /// Open transactions, oldest first, at most ten.
    pub(crate) transactions: Vec<OpenTransaction>,
    /// Prepared transactions, oldest first, at most ten.
    pub(crate) prepared: Vec<PreparedTransaction>,
    /// Replication slots, at most twenty.
    pub(crate) slots: Vec<Slot>,
    /// Its clock.
    pub(crate) clock: Skew,
    /// The size of the database.
    pub(crate) database_bytes: u64,
}

/// The timeline that a server writes, if the server reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Timeline {
    /// Its number; 0 for a replica, which writes none.
    Told(i64),
    /// The error with which the server refuses.
    Hidden(String),
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
}

/// The reason why an inbox cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadInbox {
    /// The reason.
    pub(crate) reason: String,
    /// Whether it may pass by itself.
    pub(crate) unavailable: bool,
}
