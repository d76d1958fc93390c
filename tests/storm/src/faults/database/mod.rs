//! Faults from other sessions of a database, and from its disk.
//!
//! | module | contents |
//! |---|---|
//! | [`locks`] | locked rows and tables |
//! | [`rivals`] | deadlocks, and updates between a transaction's read and its write |
//! | [`long`] | transactions that stay open |
//! | [`prepared`] | prepared transactions that wait for their decision |
//! | [`backends`] | sessions and statements that are ended from outside |
//! | [`promotion`] | a lagging standby that replaces the primary |
//! | [`restore`] | a backup that replaces the database |
//! | [`slow_commits`] | slow commits |
//! | [`sequence`] | ids that go back |
//! | [`disk`] | a full disk |
//! | [`sqlite`] | a busy file |
//! | `fence` | a database that is closed to all clients |
//! | `program` | PostgreSQL's own programs |
//! | `session` | the connection of a fault |

pub mod backends;
pub mod disk;
mod fence;
pub mod locks;
pub mod long;
pub mod prepared;
mod program;
pub mod promotion;
pub mod restore;
pub mod rivals;
pub mod sequence;
mod session;
pub mod slow_commits;
pub mod sqlite;

use super::Faults;
use crate::pair::DatabaseKind;
use crate::stage::Stage;

/// Returns the faults of this kind of database.
#[must_use]
pub fn all(kind: DatabaseKind) -> Faults<Stage> {
    match kind {
        DatabaseKind::Postgres => vec![
            Box::new(locks::RowLocks::default()),
            Box::new(locks::TableLock::default()),
            Box::new(rivals::Deadlocks::default()),
            Box::new(rivals::Conflicts::default()),
            Box::new(long::LongTransaction::default()),
            Box::new(prepared::Prepared::default()),
            Box::new(backends::Terminated),
            Box::new(backends::Cancelled),
            Box::new(disk::PostgresFull::default()),
            Box::new(slow_commits::SlowCommits::default()),
            Box::new(sequence::SequenceReset),
            Box::new(restore::Restore::default()),
            Box::new(promotion::Promotion::default()),
        ],
        DatabaseKind::Sqlite => {
            vec![Box::new(sqlite::Busy::default()), Box::new(disk::SqliteFull)]
        }
    }
}
