//! Texts from outside, made harmless for people who read them.

/// A text without characters that steer a terminal, but for line breaks and tabs. Keys and errors
/// of dead letters come from outside.
pub(crate) fn harmless(text: &str) -> String {
    let escaped = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.chars().flat_map(|c| if escaped(c) { c.escape_default().collect() } else { vec![c] }).collect()
}
