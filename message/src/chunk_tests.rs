use super::*;
use crate::{
    ContentType, EventType, Headers, Message, OrderingKey, OversizePart, PayloadEncoding, SizeLimit,
    Splitter, Topic,
};

const RAW: Splitter = Splitter {
    limit: SizeLimit { destination: "the test", message_bytes_max: 2_000 },
    encoding: PayloadEncoding::Raw,
    chunked_bytes_max: 100_000,
};

fn message(bytes: usize) -> Message {
    let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    Message::new(Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap(), payload)
        .with_key(OrderingKey::new("order-7").unwrap())
        .with_content_type(ContentType::json())
}

fn pieces(splitter: &Splitter, message: &Message) -> Vec<Message> {
    splitter.split(message).unwrap().unwrap_or_else(|| vec![message.clone()])
}

/// Reads the chunk that these attributes describe; its payload has `payload_bytes` bytes.
fn read(attributes: &[(&str, &str)], payload_bytes: usize) -> Result<Option<Chunk>, InvalidChunk> {
    let find = |name: &str| attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    Chunk::read(find, payload_bytes)
}

#[test]
fn every_payload_comes_back_whole_from_any_order() {
    for encoding in [PayloadEncoding::Raw, PayloadEncoding::Base64] {
        for bytes in (0..12_000).step_by(97) {
            let limit = SizeLimit { message_bytes_max: 8_000, ..RAW.limit };
            let (splitter, whole) = (Splitter { limit, encoding, ..RAW }, message(bytes));
            let mut chunks = pieces(&splitter, &whole);
            let turn = bytes % 3 % chunks.len();
            chunks.rotate_left(turn);
            chunks.reverse();
            let Some(chunk) = chunks[0].chunk.clone() else {
                assert_eq!(chunks, [whole]);
                continue;
            };
            let mut payload = vec![0; bytes];
            for piece in &chunks {
                let place = piece.chunk.as_ref().unwrap();
                place.check(piece.payload.len()).unwrap();
                assert!(!piece.payload.is_empty() && piece.wire_bytes() <= 8_000, "{bytes} {encoding:?}");
                let Range { start, end } = place.range();
                payload[start as usize..end as usize].copy_from_slice(&piece.payload);
            }
            assert_eq!(chunks.len(), chunk.count() as usize);
            assert_eq!(chunk.assemble(&chunks[0], payload).unwrap(), whole);
        }
    }
}

#[test]
fn the_split_follows_from_bytes_and_count() {
    let fingerprint = Fingerprint::from([7; 32]);
    for bytes in 1..300_u64 {
        for piece_max in 1..=bytes {
            let count = u32::try_from(bytes.div_ceil(piece_max)).unwrap();
            let mut covered = 0;
            for index in 0..count {
                let range = Chunk::new(index, count, bytes, fingerprint).unwrap().range();
                assert!(range.start == covered && !range.is_empty() && range.end - range.start <= piece_max);
                covered = range.end;
            }
            assert_eq!(covered, bytes);
        }
    }
}

#[test]
fn the_envelope_is_that_of_the_whole() {
    let whole = message(5_000);
    for chunk in pieces(&RAW, &whole) {
        assert_eq!(Message { payload: whole.payload.clone(), chunk: None, ..chunk }, whole);
    }
}

#[test]
fn what_fits_is_not_split_and_what_cannot_be_split_is_refused() {
    let fits = message(RAW.limit.message_bytes_max - message(0).wire_bytes());
    assert_eq!(RAW.split(&fits), Ok(None));
    assert_eq!(pieces(&RAW, &message(fits.payload.len() + 1)).len(), 2);
    let refused = RAW.split(&message(RAW.chunked_bytes_max)).unwrap_err();
    assert_eq!((refused.bytes_max, refused.destination), (RAW.chunked_bytes_max, "the test"));
}

#[test]
fn headers_that_each_chunk_would_repeat_are_not_multiplied() {
    let limit = SizeLimit::KAFKA;
    let splitter = Splitter { limit, chunked_bytes_max: 64 << 20, ..RAW };
    let mut whole = message(2 << 20);
    // Headers of 1 MB beside a payload of 2 MiB would be 3.5 GB in chunks of 600 bytes.
    for n in 0..122 {
        whole.headers.insert(format!("h{n:03}"), "x".repeat(8_150)).unwrap();
    }
    let refused = splitter.split(&whole).unwrap_err();
    assert_eq!((refused.part, refused.bytes_max), (OversizePart::Envelope, 500_000));
    assert_eq!(splitter.check(&whole), Err(refused.clone()));
    let text = refused.to_string();
    assert!(text.contains("they take at most 500000, half of a chunk: shorten the headers"), "{text}");
    // Headers near the bound: all chunks together have at most twice the payload, and one chunk.
    for encoding in [PayloadEncoding::Raw, PayloadEncoding::Base64] {
        let splitter = Splitter { encoding, ..splitter };
        let mut whole = message(2 << 20);
        while splitter.check(&whole).is_ok() && whole.headers.len() < 1_000 {
            whole.headers.insert(format!("h{:03}", whole.headers.len()), "x".repeat(2_000)).unwrap();
        }
        assert!(whole.headers.len() > 50, "the bound was reached");
        whole.headers = (0..whole.headers.len() - 1).fold(Headers::new(), |mut headers, n| {
            headers.insert(format!("h{n:03}"), "x".repeat(2_000)).unwrap();
            headers
        });
        let chunks = splitter.split(&whole).unwrap().unwrap();
        let bytes: usize = chunks.iter().map(Message::wire_bytes).sum();
        let most = 2 * whole.payload.len() + limit.message_bytes_max;
        assert!(bytes <= most, "{} chunks have {bytes} bytes, more than {most}", chunks.len());
        assert_eq!(splitter.wire_bytes(&whole), bytes, "what the relay counts in its window");
        let at = |message: &Message| message.headers.get("h000").unwrap().as_ptr();
        assert!(chunks.iter().all(|chunk| at(chunk) == at(&whole)), "chunks share the headers");
    }
    let small = message(10);
    assert_eq!(splitter.wire_bytes(&small), small.wire_bytes());
}

#[test]
fn another_payload_or_type_is_not_the_whole() {
    let whole = message(5_000);
    let chunks = pieces(&RAW, &whole);
    let chunk = chunks[0].chunk.as_ref().unwrap();
    let mut damaged = whole.payload.to_vec();
    damaged[4_321] ^= 1;
    assert!(chunk.assemble(&chunks[0], damaged).is_err());
    let mut other = chunks[1].clone();
    other.kind = EventType::new("order.cancelled").unwrap();
    assert!(chunk.assemble(&other, whole.payload.clone()).is_err());
    assert!(chunk.assemble(&chunks[2], whole.payload).is_ok());
}

#[test]
fn hostile_attributes_are_refused_with_what_is_wrong() {
    let digest = "ab".repeat(32);
    let good = [
        ("chunkindex", "1"),
        ("chunkcount", "3"),
        ("chunkbytes", "10"),
        ("chunkfingerprint", digest.as_str()),
    ];
    assert_eq!(read(&good, 4).unwrap().unwrap().range(), 4..8);
    assert_eq!(read(&[("subject", "x")], 4), Ok(None));
    let long = "9".repeat(100_000);
    for (name, value, expected) in [
        ("chunkindex", "3", "chunk 3 of 3"),
        ("chunkindex", "-1", "whole number"),
        ("chunkindex", "4294967297", "chunkindex"),
        ("chunkcount", "0", "in 0 chunks"),
        ("chunkcount", "1000000", "in 1000000 chunks"),
        ("chunkcount", "6", "10 bytes cannot be split into 6 non-empty chunks"),
        ("chunkbytes", "0", "0 bytes"),
        ("chunkbytes", "18446744073709551615", "too many"),
        ("chunkbytes", &long, "whole number"),
        ("chunkbytes", "11", ""),
        ("chunkfingerprint", "ab", "64 hexadecimal"),
        ("chunkfingerprint", &"+f".repeat(32), "64 hexadecimal"),
    ] {
        let attributes = good.map(|(known, given)| (known, if known == name { value } else { given }));
        let told = read(&attributes, 3).unwrap_err().to_string();
        assert!(told.contains(expected) && told.len() < 300, "{name}={value}: {told}");
    }
    for missing in CHUNK_ATTRIBUTES {
        let some: Vec<_> = good.into_iter().filter(|(name, _)| *name != missing).collect();
        assert!(read(&some, 4).unwrap_err().to_string().contains("missing"), "{missing}");
    }
    assert!(matches!(read(&good, 5), Err(InvalidChunk::Length { expected: 4, found: 5, .. })));
}
