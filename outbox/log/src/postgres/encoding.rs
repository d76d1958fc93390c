//! Databases whose encoding is not UTF-8.
//!
//! The server converts texts in both directions, and refuses a whole answer for one text without an
//! equivalent. A database without an encoding (`SQL_ASCII`) accepts any bytes: nothing is converted
//! there, and each text is checked separately.

use std::borrow::Cow;

use sqlx::PgConnection;

use crate::LogError;

/// Makes texts arrive as bytes where the database has no encoding. Returns whether the database can
/// store every text.
pub(super) async fn take_bytes(connection: &mut PgConnection) -> Result<bool, LogError> {
    sqlx::query_scalar(
        "SELECT set_config('client_encoding', CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII'
             ELSE 'UTF8' END, false) IS NOT NULL AND getdatabaseencoding() IN ('UTF8', 'SQL_ASCII')",
    )
    .fetch_one(connection)
    .await
    .map_err(LogError::during("choose an encoding"))
}

/// Returns a text that a database can store: without NUL characters, which PostgreSQL never
/// accepts, and with escapes for characters that the encoding lacks.
pub(super) fn storable(text: &str, takes_any_text: bool) -> Cow<'_, str> {
    let is_taken = |c: char| c != '\0' && (takes_any_text || c.is_ascii());
    if text.chars().all(is_taken) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if is_taken(c) { c.to_string() } else { c.escape_default().to_string() };
    Cow::Owned(text.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_database_does_not_take_is_escaped() {
        let text = "topic \"or ders\"\u{2026} has\ttoo";
        assert_eq!(storable(text, true), text);
        assert_eq!(storable(text, false), "topic \"or ders\"\\u{2026} has\ttoo");
        for takes_any_text in [true, false] {
            assert_eq!(storable("a\0b", takes_any_text), "a\\u{0}b");
        }
    }
}
