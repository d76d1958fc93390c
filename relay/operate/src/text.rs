//! Makes text from outside harmless for people who read it, and cuts what is too long.

use std::borrow::Cow;

/// Maximum number of characters of a name that is shown whole.
const NAME_CHARS_MAX: usize = 60;
/// Characters that are left at the beginning of a longer name.
const NAME_BEGIN_CHARS: usize = 28;
/// Characters that are left at its end.
const NAME_END_CHARS: usize = 11;

/// Cuts a name of more than 60 characters in its middle, such as `orders-eu-west-…-dead-2`: its
/// beginning and its end are what people tell it by. For display alone: it names nothing any more.
#[must_use]
pub fn shortened(name: &str) -> Cow<'_, str> {
    cut_in_the_middle(name, NAME_CHARS_MAX, NAME_BEGIN_CHARS, NAME_END_CHARS)
}

/// Cuts every word of a text that is as long as no word of a language, such as the name of a topic:
/// without this, a name can leave no room for the reason and the remedy behind it. Addresses and
/// paths stay whole.
#[must_use]
pub fn with_short_names(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace).map(|word| {
        let name = word.trim_end_matches(char::is_whitespace);
        if name.contains('/') {
            return Cow::Borrowed(word);
        }
        match shortened(name) {
            Cow::Borrowed(_) => Cow::Borrowed(word),
            Cow::Owned(short) => Cow::Owned(format!("{short}{}", &word[name.len()..])),
        }
    });
    words.collect()
}

/// Cuts a text of more than `chars_max` characters to `begin` characters, an ellipsis and the last
/// `end` characters.
pub(crate) fn cut_in_the_middle(text: &str, chars_max: usize, begin: usize, end: usize) -> Cow<'_, str> {
    if text.chars().count() <= chars_max {
        return Cow::Borrowed(text);
    }
    let place = |nth: usize| text.char_indices().nth(nth).map_or(text.len(), |(place, _)| place);
    let from_end = text.char_indices().nth_back(end.saturating_sub(1)).map_or(0, |(place, _)| place);
    Cow::Owned(format!("{}…{}", &text[..place(begin)], &text[from_end..]))
}

/// Escapes characters that control a terminal (except line breaks and tabs), that reverse the
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

/// Escapes the same characters in JSON, which means the same afterwards.
#[must_use]
pub fn harmless_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        // JSON has escaped the control characters of ASCII but the last one. Between its values are
        // line breaks.
        if hides(c) || (c.is_control() && c >= '\u{7f}') {
            let units =
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            escaped.push_str(&units);
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns whether a character has no width, or changes the direction of text.
fn hides(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name of any length leaves the reason and the remedy readable, and names that differ
    /// at either end stay different. Oracle: the texts.
    #[test]
    fn a_long_name_is_cut_in_its_middle() {
        let long = format!("t333-long-{}-eu", "a".repeat(236));
        let short = shortened(&long);
        assert_eq!(short, format!("t333-long-{}…{}-eu", "a".repeat(18), "a".repeat(8)));
        let fits = "x".repeat(NAME_CHARS_MAX);
        assert_eq!(shortened(&fits), fits);
        let wide = "ж".repeat(NAME_CHARS_MAX + 1);
        assert_eq!(shortened(&wide).chars().count(), NAME_BEGIN_CHARS + 1 + NAME_END_CHARS);

        let error = format!("kafka refused a message for topic \"{long}\": UnknownTopic: create it\n(now)");
        let told = with_short_names(&error);
        assert!(told.starts_with("kafka refused a message for topic \"t333-long-aaa"), "{told}");
        assert!(told.ends_with("aa-eu\": UnknownTopic: create it\n(now)"), "{told}");
        assert!(told.chars().count() < 120, "{told}");
        let address = format!("see https://example.com/{0} and /etc/{0}", "x".repeat(80));
        assert_eq!(with_short_names(&address), address);
    }

    #[test]
    fn what_steers_or_hides_is_escaped_and_a_bad_byte_is_spelled_as_in_errors() {
        assert_eq!(harmless("caf\u{1a}e9 \u{7}\u{200b}\u{2066}"), "caf\\xe9 \\u{7}\\u{200b}\\u{2066}");
        assert_eq!(harmless("a\u{e0041}\u{9b}2J"), "a\\u{e0041}\\u{9b}2J");
    }

    #[test]
    fn json_is_escaped_and_means_the_same() {
        let value = serde_json::json!({ "key\u{202e}": "ä\u{1b}[2J\u{9b}2J\u{7f}\u{200b}\u{e0041}\n" });
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let json = harmless_json(&pretty);
        assert!(json.contains("\\u202e") && json.contains("\\u009b2J\\u007f\\u200b\\udb40\\udc41"), "{json}");
        assert!(json.contains('ä') && json.lines().count() == pretty.lines().count(), "{json}");
        assert!(!json.chars().any(|c| hides(c) || (c.is_control() && c != '\n')), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }
}
