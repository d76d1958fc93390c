//! Reads the columns that both databases write alike.

use sqlx::{ColumnIndex, Decode, Row, Type};
use time::OffsetDateTime;

use crate::admin::{Decided, Decision};
use crate::id::KeyId;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Reads a key from its columns.
pub(crate) fn key_id<'r, R: Row>(row: &'r R) -> Result<KeyId>
where
    &'static str: ColumnIndex<R>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
{
    let id = KeyId::of_texts(row.try_get("scope")?, row.try_get("operation")?, row.try_get("key")?);
    id.map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Reads a decision. The caller passes its time, because the type of that column differs.
pub(crate) fn decided<'r, R: Row>(row: &'r R, at: OffsetDateTime) -> Result<Decided>
where
    &'static str: ColumnIndex<R>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    let action: String = row.try_get("action")?;
    let unknown = || sqlx::Error::Decode(format!("{action:?} is no decision that this version knows").into());
    let decision = Decision::from_word(&action).ok_or_else(unknown)?;
    Ok(Decided { at, actor: row.try_get("actor")?, note: row.try_get("note")?, decision, id: key_id(row)? })
}
