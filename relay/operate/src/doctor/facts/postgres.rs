//! Facts gathered from a PostgreSQL server.

use std::time::Duration;

use super::super::clock::Skew;
use super::LineFacts;

/// An open transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenTransaction {
    /// The id of the server process.
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
    /// Bytes of WAL that it retains.
    pub(crate) log_bytes: u64,
    /// The age, in transactions, of the rows that it retains.
    pub(crate) transactions: u64,
}

/// The sequence that gives out the ids of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdSequence {
    /// `CACHE`.
    pub(crate) cache: i64,
    /// `INCREMENT BY`.
    pub(crate) increment: i64,
    /// `MAXVALUE`.
    pub(crate) maximum: i64,
    /// `CYCLE`.
    pub(crate) cycles: bool,
    /// The last id; `None` before the first one, and for a role that may not read it.
    pub(crate) last: Option<i64>,
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
    /// Whether the configuration names the schema. Otherwise the `search_path` leads to it.
    pub(crate) is_schema_named: bool,
    /// Other schemas of the database that have an outbox.
    pub(crate) other_outboxes: Vec<OtherOutbox>,
    /// Tables of the toolkit that a crash of the server would empty.
    pub(crate) unlogged: Vec<String>,
    /// The sequence of the outbox's ids; `None` without tables.
    pub(crate) id_sequence: Option<IdSequence>,
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
    /// `synchronous_standby_names`; empty if commits wait for no standby.
    pub(crate) standby_names: String,
    /// Number of connected standbys that commits wait for, as far as they are visible to the role.
    pub(crate) standbys: i64,
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
    /// The error with which the server refuses to report it.
    Hidden(String),
}

/// An outbox in another schema of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherOutbox {
    pub(crate) schema: String,
    /// Whether it has messages that no relay has ever read; `None` if the role may not look.
    pub(crate) is_unread: Option<bool>,
}
