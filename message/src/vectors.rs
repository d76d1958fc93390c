//! The rules of this crate that clients in other languages repeat, against the file that their own
//! tests read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use serde::Deserialize;
use time::OffsetDateTime;

use crate::{Chunk, Fingerprint, InvalidId, MessageId};

const FILE: &str = include_str!("../../examples/clients/vectors.json");

#[derive(Deserialize)]
struct Vectors {
    message_ids: Ids,
    derived_ids: Vec<Derived>,
    fingerprints: Vec<Print>,
    chunks: Vec<Split>,
}

#[derive(Deserialize)]
struct Ids {
    accepted: Vec<Accepted>,
    refused: Vec<Refused>,
    not_ids: Vec<Refused>,
}

#[derive(Deserialize)]
struct Accepted {
    id: String,
    canonical: String,
    milliseconds: u64,
}

#[derive(Deserialize)]
struct Refused {
    id: String,
}

#[derive(Deserialize)]
struct Derived {
    milliseconds: u64,
    parts: Vec<String>,
    id: String,
}

#[derive(Deserialize)]
struct Print {
    kind: String,
    content_type: String,
    payload_base64: String,
    sha256: String,
}

#[derive(Deserialize)]
struct Split {
    bytes: u64,
    count: u32,
    ranges: Vec<[u64; 2]>,
}

fn vectors() -> Vectors {
    serde_json::from_str(FILE).unwrap()
}

/// Decodes Base64, for which this crate has no library.
fn decoded(base64: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = base64.bytes().filter(|byte| *byte != b'=');
    let digits = digits.map(|byte| ALPHABET.iter().position(|digit| *digit == byte).unwrap());
    let mut bits = 0_usize;
    let mut held = 0;
    let mut bytes = Vec::new();
    for digit in digits {
        bits = bits << 6 | digit;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 255).unwrap());
        }
    }
    bytes
}

#[test]
fn message_ids_are_those_of_the_clients() {
    let ids = vectors().message_ids;
    assert!(ids.accepted.len() >= 8 && ids.refused.len() >= 3 && ids.not_ids.len() >= 16);
    for Accepted { id, canonical, milliseconds } in ids.accepted {
        let read = id.parse::<MessageId>().unwrap();
        assert_eq!((read.to_string(), read.millis()), (canonical, milliseconds), "{id}");
    }
    for Refused { id } in ids.refused {
        assert!(id.parse::<MessageId>().is_err(), "{id}");
    }
    for Refused { id } in ids.not_ids {
        assert!(matches!(id.parse::<MessageId>(), Err(InvalidId::Malformed { .. })), "{id:?}");
    }
}

#[test]
fn derived_ids_are_those_of_the_clients() {
    for Derived { milliseconds, parts, id } in vectors().derived_ids {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
        assert_eq!(MessageId::derived(at, &parts).unwrap().to_string(), id, "{parts:?}");
    }
}

#[test]
fn fingerprints_are_those_of_the_clients() {
    for Print { kind, content_type, payload_base64, sha256 } in vectors().fingerprints {
        let print = Fingerprint::of_parts(&kind, &content_type, &decoded(&payload_base64));
        assert_eq!(print.to_string(), sha256, "{kind}");
    }
}

#[test]
fn chunks_are_those_of_the_clients() {
    for Split { bytes, count, ranges } in vectors().chunks {
        for (index, [start, end]) in (0..).zip(ranges) {
            let chunk = Chunk::new(index, count, bytes, Fingerprint::from([0; 32])).unwrap();
            assert_eq!(chunk.range(), start..end, "{index} of {count}");
        }
    }
}
