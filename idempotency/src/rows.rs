//! Rows as records, the same for every database.

use message::Fingerprint;
use migrations::Backend;
use migrations::query::Row;

use crate::id::KeyId;
use crate::options::OnExpired;
use crate::record::{Action, Decision, Found, Record, State, StuckKey};

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

pub(crate) fn decided<DB: Backend>(row: &Row<DB>) -> Result<Decision> {
    Decision::read(row, Action::from_word, key_id(row)?)
}
