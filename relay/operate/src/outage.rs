//! The words about a database that cannot be reached: the same wherever it is reported.
//!
//! Each layer below says that there is an outage, and only the innermost one says why: `the
//! database is not available: it could not connect: error communicating with database: Connection
//! refused (os error 111)`. An operator needs the address and the last part.

use std::borrow::Cow;

/// The beginning of the sentence.
const NO_ANSWER: &str = "the database does not answer: ";
/// The beginnings of errors that say the same.
const SAME: [&str; 3] = [NO_ANSWER, "the database is not available: ", "it could not connect: "];
/// The words after which the client library says why it cannot reach the server.
const NOT_REACHED: &str = "error communicating with database: ";
/// An end of the connection in the words of the client library, with the address of its manual.
const CLOSED: &str = "peer closed connection without sending TLS close_notify: \
    https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
/// The beginning of the number that the operating system gives to an error.
const OS_ERROR: &str = " (os error ";

/// Returns the text of an error, which is `the database does not answer: …` if the database could
/// not be reached, whatever was asked of it.
#[must_use]
pub fn told(error: &str) -> Cow<'_, str> {
    match not_reached(error) {
        Some(_) => Cow::Owned(format!("{NO_ANSWER}{}", reason(error))),
        None => Cow::Borrowed(error),
    }
}

/// Returns the reason of the client library, if the error is only that. In parentheses it is a
/// detail of an error that says more: a certificate that is not trusted.
fn not_reached(error: &str) -> Option<&str> {
    let parts = error.split_once(NOT_REACHED).filter(|parts| !parts.0.ends_with('('));
    parts.map(|parts| parts.1)
}

/// Returns why a database cannot be reached, without the words that say that it cannot.
#[must_use]
pub(crate) fn reason(error: &str) -> String {
    let reason = match not_reached(error) {
        Some(reason) => reason,
        None => SAME.iter().fold(error, |error, same| error.strip_prefix(same).unwrap_or(error)),
    };
    let reason = reason.replace(CLOSED, "the server closed the connection");
    match reason.split_once(OS_ERROR) {
        Some((before, after)) => {
            let number = after.trim_start_matches(|char: char| char.is_ascii_digit());
            number.strip_prefix(')').map_or_else(|| reason.clone(), |after| format!("{before}{after}"))
        }
        None => reason,
    }
}

/// Returns the sentence with the place of the database, if it is this sentence.
#[must_use]
pub(crate) fn with_place(told: &str, place: &str) -> Option<String> {
    told.strip_prefix(NO_ANSWER).map(|reason| format!("the database {place} does not answer: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one outage has one sentence, whatever noticed it. Oracle: the texts of errors as the
    /// client library and the layers above it make them.
    #[test]
    fn an_outage_has_one_sentence() {
        let refused = "Connection refused; nothing listens there: start the server";
        let raw = "Connection refused (os error 111); nothing listens there: start the server";
        for error in [
            format!("the database is not available: it could not connect: {NOT_REACHED}{raw}"),
            format!("the inbox could not list the dead letters: {NOT_REACHED}{raw}"),
            format!("{NOT_REACHED}{raw}"),
        ] {
            assert_eq!(told(&error), format!("the database does not answer: {refused}"));
            assert_eq!(told(&told(&error)), told(&error), "it is told once");
            assert_eq!(reason(&told(&error)), refused);
        }
        let lost =
            format!("the database is not available: it could not report its product: {NOT_REACHED}{CLOSED}");
        assert_eq!(told(&lost), "the database does not answer: the server closed the connection");
        let place = with_place(&told(&lost), "db:5432/shop");
        let expected = "the database db:5432/shop does not answer: the server closed the connection";
        assert_eq!(place.as_deref(), Some(expected));
    }

    #[test]
    fn an_answer_is_no_outage() {
        let answered = "the database is not available: it could not renew the lease: error returned from \
                        database: deadlock detected";
        assert_eq!(told(answered), answered);
        assert_eq!(with_place(answered, "db"), None);
        assert_eq!(reason("no (os error x)"), "no (os error x)");
        let untrusted = "the certificate is not trusted here (error communicating with database: invalid peer \
                         certificate: UnknownIssuer), and sslrootcert is not set";
        assert_eq!(told(untrusted), untrusted);
        assert_eq!(reason(untrusted), untrusted);
    }
}
