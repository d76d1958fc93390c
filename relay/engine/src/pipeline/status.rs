//! The state of a pipeline, for its watchers.

use message::Fault;

/// The current role of a pipeline. Adding a role is a breaking change: every watcher must decide
/// what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Not started yet.
    Starting,
    /// Another process holds the lease.
    Standby {
        /// The process that holds it.
        holder: String,
    },
    /// This process publishes.
    Leading {
        /// The lease's fencing token.
        epoch: i64,
    },
    /// The database is unavailable or unsuitable; the pipeline retries.
    Waiting {
        /// Party at fault.
        fault: Fault,
        /// The problem, and what to do about it.
        reason: String,
        /// The remedy in the reason, if it has one. It names no server, user or file, which not
        /// every reader may know.
        remedy: Option<String>,
    },
    /// It does not run, and waiting does not help: it needs another build of this program, or
    /// another database.
    Refused {
        /// The problem, and what to do about it.
        reason: String,
        /// As that of [`Role::Waiting`].
        remedy: Option<String>,
    },
    /// Stopped on request.
    Stopped,
}

/// The state of a pipeline, for health checks and embedding services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The role.
    pub role: Role,
    /// How many times in a row a bug in this program ended the pipeline shortly after it began; 0
    /// once it has run well. Above 1, the role means little, because the pipeline may lead only
    /// briefly.
    pub faults: u32,
}

impl Status {
    /// Returns the status of a pipeline without faults.
    #[must_use]
    pub fn of(role: Role) -> Self {
        Self { role, faults: 0 }
    }
}
