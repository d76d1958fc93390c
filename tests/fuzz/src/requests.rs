//! Requests that are sent again: the key in their header, their fingerprint, and the stored
//! response.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use idempotency::http::wire::{
    IDEMPOTENCY_KEY, InvalidKey, KEY_BYTES_MAX, StoredResponse, fingerprint, parse, read,
};
use message::Fingerprint;
use message::canonical_json::DEPTH_MAX;
use serde_json::value::RawValue;

use crate::bounded;

/// Reads the value of the header `Idempotency-Key`, and the same bytes as the key itself.
pub fn keys(input: &[u8]) {
    let strict = parse(input, false);
    let lenient = parse(input, true);
    match (&strict, &lenient) {
        (Ok(key), Ok(also)) => assert_eq!(key, also),
        (Ok(key), Err(error)) => panic!("{key} is refused when more is accepted: {error}"),
        // Without quotes, the text itself is the key.
        (Err(_), Ok(key)) => assert_eq!(key.as_str().as_bytes(), input.trim_ascii()),
        (Err(_), Err(_)) => {}
    }
    for parsed in [&strict, &lenient] {
        match parsed {
            Ok(key) => {
                assert!(is_key(key.as_str().as_bytes()), "{key:?}");
                assert_eq!(parse(&quoted(key.as_str().as_bytes()), false).as_ref(), Ok(key));
            }
            Err(error) => bounded(&error.to_string()),
        }
    }
    let meant = parse(&quoted(input), false);
    if is_key(input) {
        assert_eq!(meant.map(|key| key.as_str().as_bytes().to_vec()).as_deref(), Ok(input));
    } else {
        assert!(meant.is_err(), "{input:?} became {meant:?}");
    }
    let Ok(value) = HeaderValue::from_bytes(input) else { return };
    let mut headers = HeaderMap::new();
    headers.append(IDEMPOTENCY_KEY, value.clone());
    assert_eq!(read(&headers, false), strict.map(Some));
    headers.append(IDEMPOTENCY_KEY, value);
    assert_eq!(read(&headers, true), Err(InvalidKey::Several(2)));
}

fn is_key(text: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&text.len()) && text.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// Returns the text as a string of RFC 9651.
fn quoted(text: &[u8]) -> Vec<u8> {
    let escaped = text.iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        _ => vec![*byte],
    });
    [vec![b'"'], escaped.collect(), vec![b'"']].concat()
}

/// Reads a JSON body. Written in another way it must be the same request; with different content it
/// must be another request.
pub fn fingerprints(input: &[u8]) {
    let base = of("application/json", input);
    assert_eq!(of("application/json; charset=utf-8", input), base);
    assert_ne!(of("application/json", &[input, b"!"].concat()), base);
    let spaced = [b" ", input, b"\n"].concat();
    match serde_json::from_slice::<&RawValue>(input).ok().and_then(|raw| Json::read(raw, 0)) {
        Some(mut json) => {
            assert_eq!(of("application/json", &spaced), base, "white space");
            assert_ne!(of("text/plain", input), base, "what is not sent as JSON counts byte by byte");
            let mut written = String::new();
            json.write(&mut written);
            assert_eq!(of("application/json", written.as_bytes()), base, "{written}");
            json.change();
            written.clear();
            json.write(&mut written);
            assert_ne!(of("application/json", written.as_bytes()), base, "{written}");
        }
        None => assert_ne!(of("application/json", &spaced), base, "what is no JSON counts byte by byte"),
    }
}

fn of(kind: &'static str, body: &[u8]) -> Fingerprint {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fingerprint(&Method::POST, &Uri::from_static("/orders?a=1"), &headers, body)
}

/// JSON as it was written: numbers digit by digit, members in their order.
enum Json {
    Bare(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// The members of an object, including those that occur twice.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl Json {
    /// Parses the text. `None` if a member occurs twice, a text is not Unicode, or it is nested too
    /// deep.
    fn read(raw: &RawValue, depth: u32) -> Option<Self> {
        let text = raw.get();
        if depth > DEPTH_MAX {
            return None;
        }
        Some(match text.as_bytes().first()? {
            b'{' => {
                let Members(members) = serde_json::from_str(text).ok()?;
                let names: BTreeSet<&String> = members.iter().map(|(name, _)| name).collect();
                if names.len() < members.len() {
                    return None;
                }
                let read = members.into_iter().map(|(name, raw)| Some((name, Self::read(raw, depth + 1)?)));
                Self::Object(read.collect::<Option<_>>()?)
            }
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Self::List(items.into_iter().map(|raw| Self::read(raw, depth + 1)).collect::<Option<_>>()?)
            }
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            _ => Self::Bare(text.to_owned()),
        })
    }

    /// Writes it in an unusual way: members from the last to the first, every character escaped,
    /// white space everywhere.
    fn write(&self, to: &mut String) {
        match self {
            Self::Bare(text) => to.push_str(text),
            Self::Text(text) => escaped(text, to),
            Self::List(items) => {
                to.push_str("[ ");
                for (at, item) in items.iter().enumerate() {
                    to.push_str(if at > 0 { " ,\t" } else { "" });
                    item.write(to);
                }
                to.push_str("\r\n]");
            }
            Self::Object(members) => {
                to.push('{');
                for (at, (name, member)) in members.iter().rev().enumerate() {
                    to.push_str(if at > 0 { "\n, " } else { " " });
                    escaped(name, to);
                    to.push_str(" : ");
                    member.write(to);
                }
                to.push_str(" }");
            }
        }
    }

    /// Changes the content: another digit in its first leaf, or one more character, item or member.
    fn change(&mut self) {
        match self {
            // Changes the last digit, which a long number loses as floating point. A word becomes a
            // number.
            Self::Bare(text) => match text.pop() {
                Some(digit @ '0'..='9') => text.push(char::from(digit as u8 ^ 1)),
                _ => *text = String::from("0"),
            },
            Self::Text(text) => text.push('x'),
            Self::List(items) => match items.first_mut() {
                Some(first) => first.change(),
                None => items.push(Self::Bare(String::from("null"))),
            },
            Self::Object(members) => match members.first_mut() {
                Some((_, first)) => first.change(),
                None => members.push((String::new(), Self::Bare(String::from("null")))),
            },
        }
    }
}

fn escaped(text: &str, to: &mut String) {
    to.push('"');
    for unit in text.encode_utf16() {
        to.push_str(&format!("\\u{unit:04X}"));
    }
    to.push('"');
}

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Visitor)
    }
}

/// Reads bytes that are stored under a key, and a response to store: a status, lines `name: value`,
/// an empty line, the body.
pub fn responses(input: &[u8]) {
    match StoredResponse::decode(Bytes::copy_from_slice(input)) {
        Ok(stored) => comes_back(&stored),
        Err(error) => bounded(&error.to_string()),
    }
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((input, &[][..]), |end| (&input[..end], &input[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let Some(Ok(status)) = lines.next().map(StatusCode::from_bytes) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii())) {
            headers.append(name, value);
        }
    }
    let stored = StoredResponse::of(status, &headers, Bytes::copy_from_slice(body));
    assert_eq!((stored.status, &stored.body[..]), (status, body));
    for name in stored.headers.keys() {
        let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(&stored.headers), values(&headers), "{name}");
        assert!(!PRIVATE.contains(&name.as_str()), "{name} is stored");
    }
    comes_back(&stored);
}

/// Headers whose values are private to the first client and must not be replayed to another one.
const PRIVATE: [&str; 8] = [
    "set-cookie",
    "authorization",
    "www-authenticate",
    "authentication-info",
    "proxy-authenticate",
    "proxy-authorization",
    "ratelimit",
    "x-ratelimit-remaining",
];

fn comes_back(stored: &StoredResponse) {
    let again = StoredResponse::decode(stored.encode().into());
    assert_eq!(again.as_ref(), Ok(stored));
}
