//! Makes text from outside harmless for people who read it.

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
