//! Facts gathered from databases. Plain values: the checks look at nothing else.

use std::time::Duration;

/// A clock beside this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    /// The difference without its sign.
    pub by: Duration,
    /// How far it may be wrong.
    pub uncertainty: Duration,
}

/// One line of migrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFacts {
    /// `outbox`, `inbox`, `idempotency`.
    pub line: &'static str,
    /// The database's version; 0 when it is not there.
    pub version: i32,
    /// The version that this program needs.
    pub version_needed: i32,
    /// Why the two do not fit, with the command that helps.
    pub problem: Option<String>,
}

/// A right that is missing, or that is one too many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongGrant {
    /// The table, sequence or function.
    pub object: String,
    /// `SELECT`, `INSERT`, …
    pub privilege: String,
    /// Whether the role needs it: missing then, else one too many.
    pub wanted: bool,
}

/// The rights of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFacts {
    /// `relay`, `producer`, `consumer` or `claimant`.
    pub part: String,
    /// The role's name.
    pub role: String,
    /// The differences from the roles of least privilege.
    pub wrong: Vec<WrongGrant>,
}

/// The names of the roles whose members are the services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoles {
    /// Of those that enqueue.
    pub producer: String,
    /// Of those that consume.
    pub consumer: String,
}

impl Default for ServiceRoles {
    /// The names that `relay migrate roles` gives unless others are asked for.
    fn default() -> Self {
        Self { producer: String::from("outbox_producer"), consumer: String::from("inbox_consumer") }
    }
}

/// An open transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTransaction {
    /// The process of the server.
    pub pid: i32,
    /// Whose it is.
    pub role: String,
    /// The client's name of itself.
    pub application: String,
    /// `active`, `idle in transaction`, …; empty where it is hidden.
    pub state: String,
    /// Its age; nothing where it is hidden.
    pub age: Option<Duration>,
}

/// A prepared transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// Its name.
    pub gid: String,
    /// Whose it is.
    pub role: String,
    /// Its age.
    pub age: Duration,
}

/// A replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// Whether somebody reads it.
    pub active: bool,
    /// Bytes of log that it keeps.
    pub log_bytes: u64,
    /// How many transactions back it keeps rows.
    pub transactions: u64,
}

/// The answers of a PostgreSQL server.
#[derive(Debug, Clone, PartialEq)]
pub struct PostgresFacts {
    /// `version()`.
    pub version: String,
    /// `server_version_num`.
    pub version_number: i32,
    /// Whether it is a replica.
    pub replica: bool,
    /// Whether it is reached over this machine only.
    pub local: bool,
    /// Whether the connection is encrypted, and how.
    pub cipher: Option<String>,
    /// Whether the server's certificate is verified.
    pub verified: bool,
    /// The role that asks.
    pub role: String,
    /// The names of the services' roles that were looked at.
    pub services: ServiceRoles,
    /// Whether it is a superuser.
    pub superuser: bool,
    /// Whether it sees what other sessions do.
    pub sees_sessions: bool,
    /// Whether two connections got one session of the server: a pooler shares sessions.
    pub shared_session: bool,
    /// Why the relay itself refuses this database, if it does.
    pub refused: Option<String>,
    /// The schema's lines.
    pub lines: Vec<LineFacts>,
    /// `CACHE` of the outbox's sequence; nothing without tables.
    pub sequence_cache: Option<i64>,
    /// The timeline of its write-ahead log.
    pub timeline: Timeline,
    /// `server_encoding`.
    pub encoding: String,
    /// The recorded and the actual version of the database's collation, where they differ.
    pub stale_collation: Option<(String, String)>,
    /// `default_transaction_isolation` of a session as the server gives it.
    pub isolation: String,
    /// Roles and databases with another one.
    pub isolation_of_others: Vec<String>,
    /// Settings on which durability rests, that are not as they should be: name and value.
    pub unsafe_settings: Vec<(&'static str, String)>,
    /// Roles and databases whose commits do not wait for the disk.
    pub asynchronous: Vec<String>,
    /// The rights of the roles.
    pub roles: Vec<RoleFacts>,
    /// Tables in which everybody may do something.
    pub public: Vec<String>,
    /// Open transactions, the oldest first, at most ten.
    pub transactions: Vec<OpenTransaction>,
    /// Prepared transactions, the oldest first, at most ten.
    pub prepared: Vec<PreparedTransaction>,
    /// Replication slots, at most twenty.
    pub slots: Vec<Slot>,
    /// Its clock.
    pub clock: Skew,
    /// The size of the database.
    pub database_bytes: u64,
}

/// The timeline that a server writes, as far as it tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timeline {
    /// It tells its number; 0 for a replica, which writes none.
    Told(i64),
    /// It refuses, in these words.
    Hidden(String),
}

/// The answers of a SQLite file.
#[derive(Debug, Clone, PartialEq)]
pub struct SqliteFacts {
    /// The file.
    pub file: String,
    /// `sqlite_version()`.
    pub version: String,
    /// `journal_mode`.
    pub journal_mode: String,
    /// Why the relay itself refuses this database, if it does.
    pub refused: Option<String>,
    /// The schema's lines.
    pub lines: Vec<LineFacts>,
    /// Bytes that are free on its disk, where that can be told.
    pub free_bytes: Option<u64>,
    /// Bytes of the file.
    pub database_bytes: u64,
}

/// The answers of an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxFacts {
    /// The consumer.
    pub consumer: String,
    /// The topics that it applies; all where there are none.
    pub topics: std::collections::BTreeSet<String>,
    /// How far back it remembers; nothing before its first message. Or why it cannot be read.
    pub remembers: Result<Option<Duration>, UnreadInbox>,
}

/// Why an inbox cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadInbox {
    /// The reason.
    pub reason: String,
    /// Whether it may pass by itself.
    pub unavailable: bool,
}
