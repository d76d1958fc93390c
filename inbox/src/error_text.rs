//! Errors as texts that the tables can store.

/// Maximum length of a stored error text, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 4_096;

/// Returns an error and its sources in one line, made [`storable`].
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    storable(&message::error_text::chain(error))
}

/// Replaces an empty error text: an attempt without a text counts as one that has not failed.
const NO_TEXT: &str = "an error without a text";

/// Cuts a text to [`ERROR_BYTES_MAX`] and removes what PostgreSQL cannot store. Never returns an
/// empty text.
pub(crate) fn storable(text: &str) -> String {
    let text = if text.is_empty() { NO_TEXT } else { text };
    message::error_text::storable(text, ERROR_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_error::StoreError;

    #[test]
    fn an_error_is_stored_with_its_sources_cut_at_a_character() {
        let error =
            StoreError::new("x".repeat(4_060), migrations::SqlErrorKind::Unavailable, "ä\0".repeat(100));
        let text = error_text(&error);
        assert!(text.len() <= ERROR_BYTES_MAX && text.len() > ERROR_BYTES_MAX - 4, "{}", text.len());
        assert!(text.contains(": ä\u{fffd}"), "{text}");
    }
}
