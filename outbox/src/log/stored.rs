//! The cursor as it is stored.

use crate::log::cursor::Cursor;
use crate::log::error::{LogError, quoted};

/// The cursor as JSON.
pub(crate) fn write(cursor: &Cursor) -> Result<String, LogError> {
    serde_json::to_string(cursor)
        .map_err(|error| LogError::Corrupt { what: "cursor", problem: error.to_string() })
}

/// The cursor from JSON.
pub(crate) fn read(json: &str) -> Result<Cursor, LogError> {
    serde_json::from_str(json)
        .map_err(|error| LogError::Corrupt { what: "cursor", problem: format!("{}: {error}", quoted(json)) })
}
