//! The header `Idempotency-Key`.

use http::HeaderMap;

use crate::IdempotencyKey;

/// Name of the header.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Name of the response header that marks a stored response.
pub(crate) const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";
/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// A header that cannot be used. It is the client's fault and not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Several headers: it is unclear which one identifies the request.
    #[error("the request has {0} Idempotency-Key headers; send one")]
    Several(usize),
    /// Not a quoted string.
    #[error(
        "the Idempotency-Key is not a string in double quotes (RFC 9651, 3.3.3), for example \"8e03978e-40d5-43dd-bc93-6894a57f9324\""
    )]
    NotAString,
    /// Nothing between the quotes.
    #[error("the Idempotency-Key is empty; generate a new random one, such as a UUID, for each new request")]
    Empty,
    /// Too long.
    #[error("the Idempotency-Key has {0} bytes; the limit is {KEY_BYTES_MAX}")]
    TooLong(usize),
    /// Not printable ASCII.
    #[error("the Idempotency-Key has a character that is not printable ASCII at byte {0}")]
    NotPrintable(usize),
}

/// Reads the key of a request; `None` without a key. `lenient` also accepts a key without quotes,
/// as many clients send it; it is the same key as with quotes.
///
/// # Errors
/// [`InvalidKey`] describes what is wrong with it.
pub fn read(headers: &HeaderMap, lenient: bool) -> Result<Option<IdempotencyKey>, InvalidKey> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let more = values.count();
    if more > 0 {
        return Err(InvalidKey::Several(more + 1));
    }
    parse(value.as_bytes(), lenient).map(Some)
}

/// Reads the value of the header.
///
/// # Errors
/// [`InvalidKey`].
pub fn parse(value: &[u8], lenient: bool) -> Result<IdempotencyKey, InvalidKey> {
    let trimmed = value.trim_ascii();
    if let Some(at) = value.iter().position(|byte| !(0x20..0x7f).contains(byte) && *byte != b'\t') {
        return Err(InvalidKey::NotPrintable(at));
    }
    let text = match trimmed.strip_prefix(b"\"") {
        Some(rest) => quoted(rest)?,
        None if lenient => bare(trimmed)?,
        None => return Err(InvalidKey::NotAString),
    };
    if text.len() > KEY_BYTES_MAX {
        return Err(InvalidKey::TooLong(text.len()));
    }
    if text.is_empty() {
        return Err(InvalidKey::Empty);
    }
    // A tab in quotes is the only control character left.
    IdempotencyKey::new(text).map_err(|_| InvalidKey::NotAString)
}

/// Parses the text after the first quote, up to the closing one, and decodes its escapes. Ignores
/// parameters, because RFC 9651 requires ignoring unknown ones.
fn quoted(rest: &[u8]) -> Result<String, InvalidKey> {
    let mut text = String::with_capacity(rest.len());
    let mut bytes = rest.iter();
    loop {
        match bytes.next() {
            Some(b'"') => break,
            Some(b'\\') => match bytes.next() {
                Some(byte @ (b'"' | b'\\')) => text.push(char::from(*byte)),
                _ => return Err(InvalidKey::NotAString),
            },
            Some(byte) => text.push(char::from(*byte)),
            None => return Err(InvalidKey::NotAString),
        }
    }
    match bytes.next() {
        None | Some(b';') => Ok(text),
        Some(_) => Err(InvalidKey::NotAString),
    }
}

/// Parses a key without quotes. Refuses anything that could be several keys, or a string that lost
/// a quote.
fn bare(text: &[u8]) -> Result<String, InvalidKey> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';');
    if !text.iter().all(is_plain) {
        return Err(InvalidKey::NotAString);
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_with_and_without_quotes() {
        let long = format!("\"{}\"", "k".repeat(256));
        let longest = format!("\"{}\"", "k".repeat(255));
        let longest_key = "k".repeat(255);
        for (value, strict, lenient) in [
            ("\"8e03978e\"", Ok("8e03978e"), Ok("8e03978e")),
            ("  \"8e03978e\"  ", Ok("8e03978e"), Ok("8e03978e")),
            ("\"a \\\"b\\\" \\\\\"", Ok("a \"b\" \\"), Ok("a \"b\" \\")),
            ("\"k\";v=1", Ok("k"), Ok("k")),
            ("8e03978e", Err(InvalidKey::NotAString), Ok("8e03978e")),
            ("", Err(InvalidKey::NotAString), Err(InvalidKey::Empty)),
            ("\"\"", Err(InvalidKey::Empty), Err(InvalidKey::Empty)),
            ("\"open", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("open\"", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("\"a\" \"b\"", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("\"a\\n\"", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("a, b", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("\"a\tb\"", Err(InvalidKey::NotAString), Err(InvalidKey::NotAString)),
            ("\"ä\"", Err(InvalidKey::NotPrintable(1)), Err(InvalidKey::NotPrintable(1))),
            (&long, Err(InvalidKey::TooLong(256)), Err(InvalidKey::TooLong(256))),
            (&longest, Ok(longest_key.as_str()), Ok(longest_key.as_str())),
        ] {
            let read = |lenient| parse(value.as_bytes(), lenient).map(|key| key.as_str().to_owned());
            assert_eq!(read(false), strict.map(str::to_owned), "{value}");
            assert_eq!(read(true), lenient.map(str::to_owned), "{value}");
        }
    }

    #[test]
    fn several_headers_are_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers, true), Ok(None));
        headers.append(IDEMPOTENCY_KEY, "\"a\"".parse().unwrap());
        assert!(read(&headers, true).unwrap().is_some());
        headers.append(IDEMPOTENCY_KEY, "\"a\"".parse().unwrap());
        assert_eq!(read(&headers, true), Err(InvalidKey::Several(2)));
    }
}
