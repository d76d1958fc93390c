//! Texts of the database that may not be UTF-8. SQLite checks no text, and neither does a
//! PostgreSQL database without an encoding (`SQL_ASCII`).

/// Replaces a byte that is not UTF-8; two hexadecimal digits follow. It is the control character
/// "substitute", which no key or topic of a message may contain.
pub(crate) const SUBSTITUTE: char = '\u{1a}';

/// Maximum bytes of a text that an error quotes.
const QUOTED_BYTES: usize = 64;

/// Returns a text that can be stored and displayed.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push(SUBSTITUTE);
            text.push_str(&format!("{byte:02x}"));
        }
    }
    text
}

/// Reads a name as text.
///
/// # Errors
/// The problem, with the beginning of the name.
pub(crate) fn name<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, String> {
    str::from_utf8(bytes).map_err(|error| {
        let beginning = bytes.get(..QUOTED_BYTES).unwrap_or(bytes).escape_ascii();
        format!("the {what} \"{beginning}\" is not UTF-8 at byte {}", error.valid_up_to())
    })
}

/// Explains why a name made by [`shown`] was refused, in the words of [`name`].
pub(crate) fn explained(what: &str, text: &str, refusal: String) -> String {
    name(what, &restored(text)).err().unwrap_or(refusal)
}

/// Returns the original bytes of a text made by [`shown`].
fn restored(text: &str) -> Vec<u8> {
    let mut parts = text.split(SUBSTITUTE);
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.zip(part.get(2..)) {
            Some((byte, rest)) => {
                bytes.push(byte);
                bytes.extend_from_slice(rest.as_bytes());
            }
            None => {
                bytes.extend_from_slice(SUBSTITUTE.encode_utf8(&mut [0; 4]).as_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_utf8_are_shown_one_by_one() {
        assert_eq!(shown("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(shown(b"caf\xe9 \xff\xfe!"), "caf\u{1a}e9 \u{1a}ff\u{1a}fe!");
    }

    #[test]
    fn the_error_names_the_byte_and_quotes_a_beginning() {
        assert_eq!(name("key", b"order-7"), Ok("order-7"));
        assert_eq!(name("key", b"caf\xe9").unwrap_err(), r#"the key "caf\xe9" is not UTF-8 at byte 3"#);
        let long = name("key", &[0xff; 1_000]).unwrap_err();
        assert!(long.len() < 5 * QUOTED_BYTES, "{long}");
    }

    #[test]
    fn what_was_shown_is_explained() {
        let refusal = String::from("control characters are not allowed");
        assert_eq!(explained("key", "a\tb", refusal.clone()), refusal);
        for bytes in [&b"caf\xe9"[..], b"\xff\xfe", b"a\xffb\xc3\xa9"] {
            assert_eq!(explained("key", &shown(bytes), refusal.clone()), name("key", bytes).unwrap_err());
        }
        assert_eq!(explained("key", "a\u{1a}zz", refusal.clone()), refusal);
    }
}
