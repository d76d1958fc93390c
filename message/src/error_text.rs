//! Texts of errors, as tables and log lines take them.

use std::error::Error;

/// An error and its sources in one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A text cut to `bytes_max` at a character, without the NUL characters that PostgreSQL does not
/// store.
#[must_use]
pub fn storable(text: &str, bytes_max: usize) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    let cut = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(cut.unwrap_or(0));
    text
}
