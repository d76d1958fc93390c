//! Rows as records, the same for every database.

use message::Fingerprint;
use migrations::Backend;
use migrations::query::Row;

use crate::id::KeyId;
use crate::options::OnExpired;
use crate::record::{Action, Decision, Found, KEYS_LOOKED_AT_MAX, NamedSlice, Record, State, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

fn text<DB: Backend>(row: &Row<DB>, column: &str) -> Result<String> {
    row.get(column)
}

/// Reads a key from its columns.
fn key_id<DB: Backend>(row: &Row<DB>) -> Result<KeyId> {
    let id = KeyId::of_texts(&text(row, "scope")?, &text(row, "operation")?, &text(row, "key")?);
    id.map_err(unreadable)
}

pub(crate) fn record<DB: Backend>(row: &Row<DB>) -> Result<Record> {
    let fingerprint: Vec<u8> = row.get("fingerprint")?;
    Ok(Record {
        fingerprint: Fingerprint::try_from(&fingerprint[..]).map_err(unreadable)?,
        state: State::of_columns(&text(row, "state")?, row.get("lease_until")?)?,
        attempt: row.get("attempt")?,
        holder: row.get("holder")?,
        outcome: row.get("outcome")?,
        processed_at: row.get("processed_at")?,
        expires_at: row.get("expires_at")?,
        refuses: row.get("refuses")?,
    })
}

/// Reads a row that has a record, unless its columns are null.
pub(crate) fn found<DB: Backend>(row: &Row<DB>) -> Result<Found> {
    let state: Option<String> = row.get("state")?;
    Ok(Found {
        is_held: row.get("is_held")?,
        is_standby: row.get("is_standby")?,
        read_at: row.get("read_at")?,
        record: state.map(|_| record(row)).transpose()?,
    })
}

pub(crate) fn stuck_key<DB: Backend>(row: &Row<DB>) -> Result<StuckKey> {
    Ok(StuckKey {
        id: key_id(row)?,
        attempt: row.get("attempt")?,
        holder: row.get("holder")?,
        claimed_at: row.get("claimed_at")?,
        lease_until: row.get("lease_until")?,
        on_expired: OnExpired::of_column(row.get("refuses")?),
    })
}

/// Reads a slice of the keys with a name. The last row is the end of the walk, whatever its name.
pub(crate) fn named<DB: Backend>(found: &[Row<DB>]) -> Result<NamedSlice> {
    let mut slice = NamedSlice { ended: Vec::new(), running: 0, next: None };
    for row in found {
        let is_named: bool = row.get("is_named")?;
        let has_ended: bool = row.get("is_ended")?;
        if is_named && has_ended {
            slice.ended.push(key_id(row)?);
        } else if is_named {
            slice.running += 1;
        }
    }
    if let Some(last) = found.last()
        && row_count(last)? >= u64::from(KEYS_LOOKED_AT_MAX)
    {
        slice.next = Some(key_id(last)?);
    }
    Ok(slice)
}

/// Reads the number of rows of a walk.
fn row_count<DB: Backend>(row: &Row<DB>) -> Result<u64> {
    row.get("scanned")
}

pub(crate) fn decided<DB: Backend>(row: &Row<DB>) -> Result<Decision> {
    Decision::read(row, Action::from_word, key_id(row)?)
}
