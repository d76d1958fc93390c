//! Quotes the body of an answer in an error, unless it may repeat what errors must not show. Pure.
//!
//! Receivers repeat what they got: a framework answers 404 with the path, a validation with the
//! value. Secrets of a URL and payloads would reach errors, logs and tables with it. So a body is
//! quoted whole or not at all. It is not quoted if it contains a piece of the URL's path or query,
//! of the payload or of a header's value, or if it could contain one that is not recognized.

use std::borrow::Cow;
use std::collections::HashSet;

use message::Message;
use unicode_normalization::UnicodeNormalization as _;

use super::address::Target;
use super::wire::percent_decoded;

/// Maximum characters of a body that an error repeats.
const BODY_CHARS_MAX: usize = 200;

/// A shared word of at least this many letters and digits is a piece.
const WORD_MIN: usize = 3;

/// This many shared letters and digits in succession are a piece, whatever separates them.
const RUN: usize = 6;

/// A longer word may be a token, or something in base64.
const WORD_MAX: usize = 23;

/// Larger payloads are not searched: it takes the time of the thread that sends requests.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// Characters of escapes in JSON, URLs and HTML. A piece that is written with them is not
/// recognized.
const ESCAPES: [char; 3] = ['\\', '%', '&'];

/// Replaces a body that is not quoted.
const HIDDEN: &str = " and a body that is not shown";

/// Returns the text about a body that follows the status in an error: empty if the body has no
/// text.
pub(super) fn said(body: &[u8], message: &Message, target: &Target) -> String {
    // Compressed, or in another encoding, where a piece would not be recognized.
    let Some(text) = beginning_of_text(body) else { return HIDDEN.to_owned() };
    let shown = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = shown.collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return String::new();
    }
    let is_escaped = line.contains(ESCAPES) || words(&line).any(|word| word.chars().count() > WORD_MAX);
    let is_large = message.payload.len() > PAYLOAD_BYTES_MAX;
    if is_escaped || is_large || Pieces::of(&line).is_in_any(&hidden(message, target)) {
        return HIDDEN.to_owned();
    }
    let beginning: String = line.chars().take(BODY_CHARS_MAX).collect();
    let dots = if beginning.len() < line.len() { "…" } else { "" };
    // A semicolon would begin the remedy.
    format!(": \"{}{dots}\"", beginning.replace(';', ","))
}

/// Returns a text in UTF-8, without a last character that was cut.
fn beginning_of_text(body: &[u8]) -> Option<&str> {
    let whole = match std::str::from_utf8(body) {
        Err(error) if error.error_len().is_none() => body.get(..error.valid_up_to())?,
        _ => body,
    };
    std::str::from_utf8(whole).ok().filter(|text| !text.contains('\0'))
}

/// Returns the texts of which errors must not show any piece.
fn hidden<'a>(message: &'a Message, target: &'a Target) -> Vec<Cow<'a, str>> {
    let path = target.uri.path_and_query().map_or("", |path| path.as_str());
    let payload = String::from_utf8_lossy(&message.payload);
    // The receiver knows the values without their escapes.
    let unescaped = payload.contains('\\').then(|| serde_json::from_str::<serde_json::Value>(&payload));
    let unescaped = unescaped.and_then(Result::ok).map(|value| Cow::Owned(value.to_string()));
    let urls = [Cow::Borrowed(path), Cow::Owned(percent_decoded(path.as_bytes()))];
    let headers = message.headers.iter().map(|(_, value)| Cow::Borrowed(value));
    urls.into_iter().chain(headers).chain(unescaped).chain([payload]).collect()
}

/// Returns a text in one form of Unicode: a receiver may decompose letters, or compose them.
fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(text.nfkc().collect()) }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric())
}

fn letters(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
}

/// The words and runs of a body, in lower case.
struct Pieces {
    words: HashSet<String>,
    runs: HashSet<[char; RUN]>,
}

impl Pieces {
    fn of(text: &str) -> Self {
        let text = composed(text);
        let letters: Vec<char> = letters(&text).collect();
        Self {
            words: words(&text).map(letters_of).collect(),
            runs: letters.windows(RUN).filter_map(|run| run.try_into().ok()).collect(),
        }
    }

    fn is_in_any(&self, texts: &[Cow<str>]) -> bool {
        texts.iter().map(|text| composed(text)).any(|text| self.is_word_in(&text) || self.is_run_in(&text))
    }

    fn is_word_in(&self, text: &str) -> bool {
        let mut long = words(text).filter(|word| word.chars().nth(WORD_MIN - 1).is_some());
        long.any(|word| self.words.contains(&letters_of(word)))
    }

    fn is_run_in(&self, text: &str) -> bool {
        // No body has this as a letter.
        let mut run = [' '; RUN];
        letters(text).any(|letter| {
            run.rotate_left(1);
            let [.., last] = &mut run;
            *last = letter;
            self.runs.contains(&run)
        })
    }
}

fn letters_of(word: &str) -> String {
    letters(word).collect()
}

#[cfg(test)]
mod tests {
    use message::{EventType, Topic};

    use super::*;

    fn said_of(body: &str, payload: &'static str) -> String {
        said_of_bytes(body.as_bytes(), payload)
    }

    fn said_of_bytes(body: &[u8], payload: &'static str) -> String {
        let mut message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), payload);
        message.headers.insert("tenant", "Acme-77").unwrap();
        let target = Target::parse("https://a.example/services/T0/s3cr%65t/k9?token=to%2Fken+two").unwrap();
        said(body, &message, &target)
    }

    #[test]
    fn a_body_that_repeats_nothing_is_quoted_in_one_short_line_and_is_no_remedy() {
        let body = format!("no\r\n\x1b[31m order; call me {}", "later ".repeat(1_000));
        let text = said_of(&body, "{}");
        assert!(text.len() < 300 && text.starts_with(": \"no [31m order, call me later later"), "{text}");
        assert!(text.ends_with("…\""), "{text}");
        assert_eq!(said_of(" \n", "{}"), "");
        assert_eq!(said_of("no price", r#"{"n":1}"#), ": \"no price\"");
    }

    #[test]
    fn nothing_is_quoted_beside_a_payload_that_is_too_large_to_search() {
        let payload = String::leak("x ".repeat(PAYLOAD_BYTES_MAX / 2));
        assert_eq!(said_of("no price", payload), ": \"no price\"");
        let payload = String::leak(format!("{payload}x"));
        assert_eq!(said_of("no price", payload), HIDDEN);
    }

    /// Goal: no piece of the URL, the payload or a header is quoted, however it is written. Oracle:
    /// each body is quoted once the piece is replaced.
    #[test]
    fn a_body_with_a_piece_of_the_url_the_payload_or_a_header_is_not_shown() {
        let payload = r#"{"card":"4929 1234","name":"M\u00fcller","pin":"907"}"#;
        for (body, harmless) in [
            ("<pre>Cannot POST /services/T0/s3cret/k9</pre>", "<pre>Cannot POST</pre>"),
            ("no route s3cret", "no route sscret"),
            ("no route S3CR.ET", "no route SSCR.ET"),
            ("token is wrong", "tokem is wrong"),
            ("no to/ken two", "no to/kem"),
            ("card number", "cart number"),
            ("bad number 49291234", "bad number 49281239"),
            ("bad number 49-29-12", "bad number 49-2"),
            ("who is müller?", "who is meier?"),
            ("907 is wrong", "908 is wrong"),
            ("unknown: acme", "unknown: acne"),
            // Decomposed, and in full width.
            ("who is Mu\u{308}ller?", "who is Me\u{308}ller?"),
            ("\u{ff4d}\u{fc}ller", "\u{ff4e}\u{fc}ller"),
        ] {
            assert_eq!(said_of(body, payload), HIDDEN, "{body}");
            assert_eq!(said_of(harmless, payload), format!(": \"{harmless}\""));
        }
    }

    /// Goal: the form of Unicode does not matter, neither of the payload nor of the body.
    #[test]
    fn letters_are_compared_however_they_are_composed() {
        for payload in ["{\"name\":\"M\u{fc}ller\"}", "{\"name\":\"Mu\u{308}ller\"}"] {
            for body in ["unknown: M\u{fc}ller", "unknown: Mu\u{308}ller", "unknown: MU\u{308}LLER"] {
                assert_eq!(said_of(body, payload), HIDDEN, "{body} {payload}");
            }
        }
    }

    /// The beginning of a gzip file, Latin-1, UTF-16.
    #[test]
    fn a_body_that_is_compressed_or_in_another_encoding_is_not_shown() {
        let payload = r#"{"name":"Müller","pin":"907"}"#;
        for body in [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03M\xcc"[..], b"who is M\xfcller?", b"9\x000\x007\0"] {
            assert_eq!(said_of_bytes(body, payload), HIDDEN, "{body:?}");
        }
        let text = "no price in €".as_bytes();
        let (_, cut) = text.split_last().unwrap();
        assert_eq!(said_of_bytes(cut, payload), ": \"no price in\"", "a character was cut");
    }

    #[test]
    fn a_body_in_which_a_piece_could_be_unrecognized_is_not_shown() {
        for body in
            ["no route s3cr%65t", "M&uuml;ller", r"who is M\u00fcller", "eyJwaW4iOiI5MDciLCJuYW1lIjoi"]
        {
            assert_eq!(said_of(body, "{}"), HIDDEN, "{body}");
        }
    }
}
