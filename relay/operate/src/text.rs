//! Makes text from outside harmless for people who read it.

/// Escapes characters that steer a terminal (except line breaks and tabs), that reverse the
/// direction of a line, or that are invisible. Keys and errors of dead letters come from outside.
#[must_use]
pub fn harmless(text: &str) -> String {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    let escaped = |c: char| match c {
        // Together with the two digits after it, this is a byte that is not UTF-8, as errors quote
        // it.
        '\u{1a}' => vec!['\\', 'x'],
        c if steers(c) => c.escape_default().collect(),
        c if hides(c) => c.escape_unicode().collect(),
        c => vec![c],
    };
    text.chars().flat_map(escaped).collect()
}

/// Returns whether a character has no width, or changes the direction of text.
fn hides(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_or_hides_is_escaped_and_a_bad_byte_is_spelled_as_in_errors() {
        assert_eq!(harmless("caf\u{1a}e9 \u{7}\u{200b}\u{2066}"), "caf\\xe9 \\u{7}\\u{200b}\\u{2066}");
    }
}
