//! Texts from outside, made harmless for people who read them in a browser. What they mean as HTML
//! is the templates' work: they escape everything.

use crate::operate::text::harmless;

/// A text without characters that steer a terminal it is copied to, that turn the direction of a
/// line around, or that nobody sees.
pub(crate) fn plain(text: &str) -> String {
    let hides = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let text = harmless(text);
    text.chars().flat_map(|c| if hides(c) { c.escape_unicode().collect() } else { vec![c] }).collect()
}

/// The first characters of a text, marked where something is left out.
pub(crate) fn beginning(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_misled_by_what_a_text_hides() {
        assert_eq!(plain("a\u{202e}b\u{200b}\u{1b}c"), "a\\u{202e}b\\u{200b}\\u{1b}c");
        assert_eq!(plain("ключ 鍵 \u{e4}"), "ключ 鍵 ä");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(beginning("äöü", 2), "äö…");
        assert_eq!(beginning("äöü", 3), "äöü");
    }
}
