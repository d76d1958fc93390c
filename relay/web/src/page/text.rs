//! Makes text from outside harmless for people who read it in a browser. The templates escape all
//! HTML.

pub(crate) use operate::text::harmless as plain;

/// Returns the first characters of a text, with a mark if something is omitted.
pub(crate) fn beginning(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Words with more characters than this may be broken before their end.
const WORD_CHARS_MAX: usize = 24;

/// Returns a text in parts between which a line may break: in long words, such as
/// `pipeline.engine.message_bytes_max`, after a full stop, a slash or an underscore. A narrow card
/// would break them anywhere, and leave a bracket alone on its line.
pub(crate) fn breakable(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut may_break = false;
    for word in text.split_inclusive(char::is_whitespace) {
        let is_long = word.chars().nth(WORD_CHARS_MAX).is_some();
        for char in word.chars() {
            if may_break {
                parts.push(String::new());
            }
            may_break = is_long && matches!(char, '.' | '/' | '_');
            if let Some(part) = parts.last_mut() {
                part.push(char);
            }
        }
    }
    parts
}

/// Formats a count with thousands separators.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a text that begins with a capital letter.
pub(crate) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
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
    fn a_long_word_breaks_within() {
        let text = "this relay (pipeline.engine.message_bytes_max) takes at most 2048 bytes of a.b/c";
        let parts = breakable(text);
        assert_eq!(parts.concat(), text);
        assert_eq!(parts[..4], ["this relay (pipeline.", "engine.", "message_", "bytes_"]);
        assert_eq!(parts[4..], ["max) takes at most 2048 bytes of a.b/c"]);
        assert_eq!(breakable("no route for a.b"), ["no route for a.b"]);
        assert_eq!(breakable(""), [""]);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(beginning("äöü", 2), "äö…");
        assert_eq!(beginning("äöü", 3), "äöü");
    }
}
