//! Claiming a key in a transaction.
//!
//! The primary key of the table separates two claims of one key. (1) A key without a row is claimed
//! by an INSERT that does nothing on a conflict: the index decides, whatever either transaction
//! sees. (2) An existing row is taken over, in one statement, only if it is unchanged since it was
//! read. The same holds for a row that has expired, deleted meanwhile or not: forgetting deletes
//! it, and then it is a key without a row. (3) The lock of the key, taken before anything is read,
//! adds what an index cannot. A second request learns that the first one is running instead of
//! waiting for it, and the owner of the lock reads what earlier owners have committed. Two keys
//! with one lock, or one key with two locks, do no harm.

use message::token::Drift;
use sqlx::Transaction;

use crate::decide::{Verdict, decide};
use crate::handle::IdempotencyKeys;
use crate::store::{Ask, KeyStore, KeyTables, TakeOver};

/// Maximum number of times that a row may change between reading it and taking it over.
const LOOKS_MAX: u32 = 5;

/// Claims a key in a transaction that was begun for it. Returns the drift of a key whose time is
/// not accepted; one that is too old is accepted if it has a record. Then roll the transaction
/// back: a record that it left would let the next request with the key run.
pub(crate) async fn hold<DB: KeyStore>(
    connection: &mut DB::Connection,
    tables: &KeyTables<DB>,
    ask: &Ask,
    is_lease: bool,
) -> Result<Result<Verdict, Drift>, sqlx::Error> {
    if let Some(claimed_at) = tables.insert(connection, ask, is_lease).await? {
        return Ok(ask.validate_time(claimed_at).map(|()| Verdict::FIRST));
    }
    let mut looks = 0;
    loop {
        looks += 1;
        let found = tables.look(connection, ask).await?;
        let read_at = found.read_at;
        let known = found.record.clone();
        let verdict = decide(found, &ask.asked);
        let Verdict::Take { attempt, is_recorded } = verdict else { return Ok(Ok(verdict)) };
        // An old key with a record runs: nothing was forgotten. A key whose time lies ahead would
        // be accepted for longer than the record that it gets now is kept.
        let is_excused = |drift: &Drift| is_recorded && matches!(drift, Drift::TooOld { .. });
        if let Some(drift) = ask.validate_time(read_at).err().filter(|drift| !is_excused(drift)) {
            return Ok(Err(drift));
        }
        let is_taken = match &known {
            Some(known) => tables.replace(connection, ask, is_lease, TakeOver { attempt, known }).await?,
            // The row was deleted meanwhile.
            None => tables.insert(connection, ask, is_lease).await?.is_some(),
        };
        if is_taken {
            return Ok(Ok(verdict));
        }
        if looks == LOOKS_MAX {
            return Ok(Ok(Verdict::Busy));
        }
    }
}

/// Claims a key on lease, in a separate transaction. Commits only a key whose time was accepted, so
/// a try whose answer was lost does not have to be validated again.
pub(crate) async fn lease<DB: KeyStore>(
    keys: &IdempotencyKeys<DB>,
    ask: &Ask,
) -> Result<Result<Verdict, Drift>, sqlx::Error> {
    let mut tx = begin_holding(keys, ask).await?;
    let leased = async {
        let held = hold::<DB>(&mut tx, keys.tables(), ask, true).await?;
        if held.is_ok() {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(held)
    };
    keys.db().call(leased).await
}

/// Begins a transaction that tries to lock a key until it ends. Cancel-safe.
pub(crate) async fn begin_holding<DB: KeyStore>(
    keys: &IdempotencyKeys<DB>,
    ask: &Ask,
) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let db = keys.db();
    let keys = keys.clone();
    let ask = ask.clone();
    let begin = |connection| async move { DB::begin_holding(connection, keys.tables(), &ask).await };
    db.begin(begin).await
}
