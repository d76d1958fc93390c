//! Texts of errors for tables and log lines.

use std::error::Error;

/// Joins an error and its sources in one line. Skips a source that the text before it already ends
/// with. Drops the line number that sqlx appends to an error from PostgreSQL.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut told, mut before) = (Vec::new(), String::new());
    for error in std::iter::successors(Some(error), |error| (*error).source()) {
        let text = error.to_string();
        if told.is_empty() || !before.ends_with(&text) {
            told.push(plain(&text).to_owned());
        }
        before = text;
    }
    told.join(": ")
}

/// The prefix with which sqlx marks an error from the database.
const ANSWERED: &str = "error returned from database: ";

/// Cuts off the line number in PostgreSQL's own source, which sqlx appends.
fn plain(text: &str) -> &str {
    let is_number = |line: &str| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    match text.rsplit_once(" at line ") {
        Some((rest, line)) if text.contains(ANSWERED) && is_number(line) => rest,
        _ => text,
    }
}

/// Returns the remedy with which a reason ends: the part after its last semicolon. For the methods
/// of errors whose reasons are written in this form. Everyone else asks the error, which knows
/// whether its text is a reason.
#[doc(hidden)]
#[must_use]
pub fn remedy(reason: &str) -> Option<&str> {
    reason.rsplit_once("; ").map(|(_, remedy)| remedy)
}

/// Cuts a text to `bytes_max` bytes at a character boundary, and replaces NUL characters, which
/// PostgreSQL does not store.
#[must_use]
pub fn storable(text: &str, bytes_max: usize) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    let cut = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(cut.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn a_database_is_quoted_once_and_without_the_line_of_its_source() {
        let answer = Link("permission denied for table t at line 3650", None);
        let client = Link(
            "error returned from database: permission denied for table t at line 3650",
            Some(Box::new(answer)),
        );
        let told = chain(&Link("the inbox was not read", Some(Box::new(client))));
        let expected = "the inbox was not read: error returned from database: permission denied for table t";
        assert_eq!(told, expected);
        assert_eq!(chain(&Link("no JSON at line 1", None)), "no JSON at line 1");
    }
}
