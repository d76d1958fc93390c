//! The fingerprints of calls: what makes two requests under one key different. And the statuses of
//! keys that are refused.

use std::collections::{HashMap, HashSet};

use examples::grpc::once::not_claimed;
use examples::grpc::received::Received;
use idempotency::{ClaimError, IdempotencyKey};
use message::token::{Drift, DriftWindow, Token};
use message::{Fingerprint, MessageId};
use prost::Message;
use tonic::Code;

/// An order, as a build knows it that is older than the client's.
#[derive(Clone, PartialEq, Eq, Message)]
struct Old {
    #[prost(int64, tag = "1")]
    cents: i64,
}

/// The same as the client knows it.
#[derive(Clone, PartialEq, Eq, Message)]
struct New {
    #[prost(int64, tag = "1")]
    cents: i64,
    #[prost(string, tag = "2")]
    note: String,
    #[prost(string, repeated, tag = "3")]
    tags: Vec<String>,
    #[prost(message, optional, tag = "4")]
    labelled: Option<Labelled>,
}

/// A map without an order, as `tonic_prost_build` writes it.
#[derive(Clone, PartialEq, Eq, Message)]
struct Labelled {
    #[prost(map = "string, string", tag = "1")]
    labels: HashMap<String, String>,
    #[prost(map = "int32, bytes", tag = "5")]
    images: HashMap<i32, Vec<u8>>,
}

fn print(message: &impl Message) -> Fingerprint {
    Received::new(message.encode_to_vec()).fingerprint("shop.Orders/Place")
}

fn labelled(value: &str, entries: usize) -> Labelled {
    let labels = (0..entries).map(|number| (format!("label-{number}"), value.to_owned())).collect();
    Labelled { labels, images: (0..3).map(|number| (number, vec![0xff; 9])).collect() }
}

#[test]
fn a_map_has_one_fingerprint_in_every_order_of_its_entries() {
    for entries in [2, 32] {
        let mut sent = HashSet::new();
        let mut prints = HashSet::new();
        for _ in 0..40 {
            let order = New { labelled: Some(labelled("value", entries)), ..New::default() };
            sent.insert(order.encode_to_vec());
            prints.insert(*print(&order).as_bytes());
        }
        assert!(sent.len() > 1, "every order is the same");
        assert_eq!(prints.len(), 1);
    }
    let of = |value| print(&New { labelled: Some(labelled(value, 2)), ..New::default() });
    assert_ne!(of("value"), of("other"));
}

/// Goal: a call that is repeated during a rolling upgrade is the same call for the builds that know
/// all of its fields and for those that do not, and another one if an unknown field differs.
#[test]
fn what_a_build_does_not_know_is_compared() {
    let sent = |note: &str| New { cents: 7, note: note.to_owned(), ..New::default() };
    assert_eq!(Old::decode(&*sent("a").encode_to_vec()), Ok(Old { cents: 7 }));
    assert_ne!(print(&sent("a")), print(&sent("b")));
    assert_ne!(print(&sent("a")), print(&Old { cents: 7 }));
    // The order of fields is the client's affair.
    let [cents, note] = [Old { cents: 7 }.encode_to_vec(), sent("a").encode_to_vec()[2..].to_vec()];
    let [one, other] = [[&cents[..], &note].concat(), [&note[..], &cents].concat()];
    assert_ne!(one, other);
    assert_eq!(Received::new(one).fingerprint("x"), Received::new(other).fingerprint("x"));
}

#[test]
fn the_order_of_a_list_and_bytes_that_are_no_message_are_compared() {
    let tagged =
        |tags: &[&str]| print(&New { tags: tags.iter().map(|&tag| tag.into()).collect(), ..New::default() });
    assert_ne!(tagged(&["one", "two"]), tagged(&["two", "one"]));
    assert_eq!(tagged(&["8B(A"]), tagged(&["(A8B"]), "a text that could be a message is sorted as one");
    let raw = |bytes: &[u8]| Received::new(bytes.to_vec()).fingerprint("x");
    // A group, a field that ends early, a number of no field, and more depth than any message has.
    for bytes in [&b"\x0b\x0c"[..], b"\x0a\x05ab", b"\x00\x01", b"\xff\xff"] {
        assert_ne!(raw(bytes), raw(&[bytes, b"\x00"].concat()), "{bytes:?}");
    }
    let mut heads = Vec::new();
    let mut len = 0;
    for _ in 0..300_000 {
        let mut head = vec![0x0a];
        prost::encode_length_delimiter(len, &mut head).expect("there is room");
        len += head.len();
        heads.push(head);
    }
    let deep: Vec<u8> = heads.into_iter().rev().flatten().collect();
    assert_ne!(raw(&deep), raw(&deep[1..]), "it is read down to a depth");
    assert_ne!(print(&Old { cents: 7 }), Received::new(Old { cents: 7 }.encode_to_vec()).fingerprint("y"));
}

/// Goal: a client learns that its call may have run under a key that is too old, and does not just
/// make a new one. Oracle: the words of the statuses, which are those of HTTP.
#[test]
fn a_key_that_is_too_old_is_not_one_that_is_malformed() {
    let made = MessageId::new();
    let drift = |ahead: i64| {
        let now = made.generated_at() + time::Duration::days(ahead);
        DriftWindow::DEFAULT.at(now).validate(Token::from(made)).expect_err("it is out of the window")
    };
    let [old, early] = [drift(15), drift(-1)];
    assert!(matches!((old, early), (Drift::TooOld { .. }, Drift::TooFarAhead { .. })));
    let malformed = IdempotencyKey::new("8e03978e").expect("a key").token().expect_err("it is no token");
    for (error, word) in [
        (ClaimError::NotAToken(malformed), "idempotency_key_malformed"),
        (ClaimError::Drift(old), "idempotency_key_too_old"),
        (ClaimError::Drift(early), "idempotency_key_too_far_ahead"),
    ] {
        let status = not_claimed(error);
        let code = status.metadata().get("idempotency-code").and_then(|code| code.to_str().ok());
        assert_eq!((status.code(), code), (Code::InvalidArgument, Some(word)));
        assert!(status.message().ends_with("Nothing was done now."), "{status:?}");
    }
    let drifted = not_claimed(ClaimError::Drift(old));
    assert!(drifted.message().contains("find out whether it took effect"), "{drifted:?}");
}
