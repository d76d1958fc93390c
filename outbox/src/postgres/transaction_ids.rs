//! Ids that name the transaction in which they are taken.
//!
//! PostgreSQL gives each transaction a number of 64 bits that a cluster never repeats, and each
//! cluster an identifier. Together with a counter they make ids that are unique without
//! coordination between services ([`TransactionStamp`] has the layout). SQLite has no transaction
//! numbers, so it does not support these ids.
//!
//! | event | effect |
//! |---|---|
//! | rollback | the next transaction has another number |
//! | rollback to a savepoint | the counter also goes back: ids taken since then are assigned again, to the rows that replace the old ones |
//! | crash | numbers of transactions that wrote nothing durable are assigned again: their ids were never visible in the database, and the new ones carry a different time |
//! | failover to a standby, even one that lacks the last transactions | the timeline, which is part of the ids, is different |
//! | dump and restore, logical replication | the cluster has a different identifier |
//! | a file-level copy that is started twice without a promotion | both share identifier and timeline, and only the times differ. Do not write to both |
//!
//! Therefore use an id outside of the transaction (as a key for another service, for example) only
//! after the commit. A transaction that runs again is a different one and gets different ids. To
//! keep one id for all attempts, derive it ([`MessageId::derived`](message::MessageId::derived)) or
//! let the outbox make it.

use message::token::TransactionStamp;
use message::{InvalidId, MessageId};
use sqlx::{Postgres, Transaction};
use time::OffsetDateTime;

/// Maximum number of ids that are taken at once.
pub const TAKEN_MAX: u32 = 65_536;

/// Why a transaction gets no ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionIdError {
    /// Too many at once, or none. The program is at fault.
    #[error("{count} ids cannot be taken at once; take 1 to {TAKEN_MAX}")]
    Count {
        /// The requested number.
        count: u32,
    },
    /// The transaction has taken its maximum number of ids.
    #[error(
        "the transaction has taken {taken} ids; the limit is {}: take the rest in another transaction",
        TransactionStamp::IDS_MAX
    )]
    UsedUp {
        /// The total with these ids.
        taken: i64,
    },
    /// The transaction began at a time that no id can carry.
    #[error(transparent)]
    Time(#[from] InvalidId),
    /// The database's answer is not a transaction number.
    #[error("the database returned the transaction id {0:?}, which is not a number")]
    Number(String),
    /// The database refused or became unavailable. Roll back.
    #[error("the database did not return the id of the transaction")]
    Database(#[from] sqlx::Error),
}

// The counter is a setting of the transaction, so all callers that take ids in it share one. The
// first eight digits of a WAL file's name are the timeline being written; the control file shows it
// only after a checkpoint.
pub(super) const TAKE: &str = "
SELECT now(), pg_current_xact_id()::text, (SELECT system_identifier::text FROM pg_control_system()),
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
    set_config('outbox_toolkit.ids_taken',
        (coalesce(nullif(current_setting('outbox_toolkit.ids_taken', true), ''), '0')::bigint + $1)::text, true)::bigint";

/// Takes `count` ids, 1 to [`TAKEN_MAX`], in one round trip. They ascend, even across several calls
/// in one transaction, and carry the time at which the transaction began.
///
/// # Errors
/// [`TransactionIdError`]. Not cancel-safe: drop the transaction with the call.
pub async fn take(
    tx: &mut Transaction<'_, Postgres>,
    count: u32,
) -> Result<Vec<MessageId>, TransactionIdError> {
    if !(1..=TAKEN_MAX).contains(&count) {
        return Err(TransactionIdError::Count { count });
    }
    let (began_at, number, system, timeline, taken): (OffsetDateTime, String, String, i64, i64) =
        sqlx::query_as(TAKE).bind(i64::from(count)).fetch_one(&mut **tx).await?;
    let Ok(transaction) = number.parse() else { return Err(TransactionIdError::Number(number)) };
    // 32 bits because of the cast above.
    let stamp = TransactionStamp::new(began_at, transaction, &system, timeline as u32)?;
    let used_up = || TransactionIdError::UsedUp { taken };
    let end = u32::try_from(taken).map_err(|_| used_up())?;
    (end.saturating_sub(count)..end).map(|number| stamp.id(number).ok_or_else(used_up)).collect()
}
