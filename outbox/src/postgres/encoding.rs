//! Databases whose encoding is not UTF-8.
//!
//! The server converts texts on their way out and in, and refuses a whole answer for one text that
//! has no equivalent. A database without an encoding (`SQL_ASCII`) takes any bytes: there nothing
//! is converted, and each text is looked at by itself.

use sqlx::PgConnection;

use crate::log::LogError;

/// Makes texts come as bytes where the database has no encoding. Returns whether the database can
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

/// Returns a text that a database of any encoding can store.
pub(super) fn ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { c.escape_default().to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ascii_is_escaped() {
        assert_eq!(ascii("topic \"or ders\"\u{2026} has\ttoo"), "topic \"or ders\"\\u{2026} has\ttoo");
    }
}
