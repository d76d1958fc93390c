//! The rules that clients in other languages repeat, from the file that their tests read.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use statements::message::{Message, MessageId};
use statements::{NewMessage, Outbox, Outcome};
use time::OffsetDateTime;

use crate::cases::{delivered, inbox};
use crate::database::{self, order};
use crate::driver::{Driver, Step};

#[derive(serde::Deserialize)]
struct Vectors {
    message_ids: Ids,
    derived_ids: Vec<Derived>,
    fingerprints: Vec<Print>,
}

#[derive(serde::Deserialize)]
struct Ids {
    refused: Vec<Refused>,
}

#[derive(serde::Deserialize)]
struct Refused {
    id: String,
}

#[derive(serde::Deserialize)]
struct Derived {
    milliseconds: u64,
    parts: Vec<String>,
    id: String,
}

#[derive(serde::Deserialize)]
struct Print {
    kind: String,
    content_type: String,
    payload_base64: String,
    sha256: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../../clients/vectors.json")).expect("vectors")
}

/// Oracle: what the database stored for a message with these parts.
pub(crate) fn derived_ids_and_fingerprints_are_those_of_the_clients<D: Driver>() {
    let vectors = vectors();
    assert!(vectors.derived_ids.len() >= 5 && vectors.fingerprints.len() >= 3);
    for Derived { milliseconds, parts, id } in vectors.derived_ids {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
        assert_eq!(MessageId::derived(at, &parts).expect("an id").to_string(), id);
    }
    let mut driver = D::connect();
    let inbox = inbox::<D>();
    for Print { kind, content_type, payload_base64, sha256 } in vectors.fingerprints {
        let payload = STANDARD.decode(payload_base64).expect("Base64");
        let message = Message {
            kind: kind.parse().expect("a kind"),
            content_type: content_type.parse().expect("a type"),
            payload: payload.clone().into(),
            ..delivered(order())
        };
        let outcome = driver.apply(&inbox, &message, &[]).expect("applied");
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
        let stored = database::text(&format!(
            "SELECT encode(fingerprint, 'hex') FROM inbox_message WHERE message_id = '{}'",
            message.id
        ));
        assert_eq!(stored, sha256);
        let again = NewMessage::from(message.clone());
        let steps = [Step::Enqueue(again)];
        driver.transaction(false, &Outbox::new(), &steps).expect("committed");
        let enqueued = database::text(&format!(
            "SELECT encode(inbox_fingerprint(kind, content_type, payload), 'hex') FROM outbox_message
                WHERE message_id = '{}'",
            message.id
        ));
        assert_eq!(enqueued, sha256);
    }
}

pub(crate) fn ids_that_clients_refuse_are_refused<D: Driver>() {
    let refused = vectors().message_ids.refused;
    assert!(refused.len() >= 3);
    for Refused { id } in refused {
        assert!(id.parse::<MessageId>().is_err(), "{} accepts {id}", D::NAME);
    }
}
