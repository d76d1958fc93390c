//! Messages of foreign producers, read from deliveries without a usable envelope.
//!
//! A *mapping* is a function that reads one form: `fn(&Malformed) -> Result<ForeignMessage,
//! Unmapped>`. `on_foreign` of a consumer takes one. [`any`] tries all but [`by_arrival`] in turn,
//! [`first`] the ones that you name.
//!
//! | mapping | reads | id is made of | time |
//! |---|---|---|---|
//! | [`cloud_event`] | CloudEvents whose id is not of version 7, in headers or in a JSON body | source and id | `time`, else that of the broker |
//! | [`sns`] | notifications of Amazon SNS | topic and `MessageId` | `Timestamp` |
//! | [`event_bridge`] | events of Amazon EventBridge | source and id | `time` |
//! | [`debezium_outbox`] | the outbox event router of Debezium; with `any`, records of its topics `outbox.event.*` and those whose `id` is a UUID | topic and the header `id` | that of the record |
//! | [`debezium_change`] | change events of Debezium, tombstones included | key and position in the database's log | that of the change |
//! | [`framework`] | MassTransit, NServiceBus, Wolverine, CAP, Celery, Axon, Eventuate Tram, Sequin, Laravel, messages of Spring with an id | the framework and its id | its own, else that of the broker |
//! | [`by_arrival`] | anything else, by its place at the broker (Kafka, SQS) | topic, partition and offset; or the message id of SQS | that of the broker |
//!
//! An id that is a UUID of version 7 is kept. Any other is hashed with the time of the event, so
//! the time must be the same whenever the event is sent. Where it is that of the broker, an event
//! that its producer sends twice counts as two.

mod arrival;
mod aws;
mod body;
mod cloud_event;
mod debezium;
mod framework;
mod identity;
mod unmapped;

pub use self::arrival::by_arrival;
pub use self::aws::{event_bridge, sns};
pub use self::cloud_event::cloud_event;
pub use self::debezium::{debezium_change, debezium_outbox};
pub use self::framework::framework;
pub use self::unmapped::Unmapped;
use crate::foreign_message::ForeignMessage;
use crate::subscription::Malformed;

/// A mapping: a function that reads one form of foreign deliveries.
pub type Mapping = fn(&Malformed) -> Result<ForeignMessage, Unmapped>;

/// All mappings that recognise a form, in the order in which [`any`] tries them. The first ones
/// demand more of their form.
const RECOGNISING: [Mapping; 7] =
    [sns, event_bridge, cloud_event, debezium::routed, debezium_change, framework, debezium::perhaps_routed];

/// The beginning of the error of a delivery that no mapping recognises; their reasons follow.
const UNREAD: &str = "no mapping reads this delivery: ";

/// Reads a delivery in any form that one of the mappings recognises; not by its arrival.
///
/// Many producers write a header `id`. In a topic that begins with `outbox.event.`, it counts as a
/// record of Debezium's outbox event router, whatever other headers the record has. Elsewhere it
/// does so if it is a UUID and no other mapping reads the record. Name [`debezium_outbox`] for
/// events with other ids.
///
/// # Errors
/// [`Unmapped::OtherForm`] if none recognises it, or the error of the one that does.
pub fn any(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    first(RECOGNISING)(malformed)
}

/// Returns a mapping that tries these in turn, until one recognises the form of the delivery.
///
/// Its error is that of the mapping that recognised the form, or [`Unmapped::OtherForm`] with the
/// reason of each.
///
/// ```
/// use message::foreign::{self, by_arrival};
/// let read = foreign::first([foreign::sns, foreign::cloud_event, by_arrival]);
/// # let _ = read;
/// ```
pub fn first<const N: usize>(
    mappings: [Mapping; N],
) -> impl Fn(&Malformed) -> Result<ForeignMessage, Unmapped> + Send + Sync + 'static {
    move |malformed| {
        let mut reasons = Vec::new();
        for mapping in mappings {
            match mapping(malformed) {
                Err(Unmapped::OtherForm(reason)) => {
                    // The reasons of a mapping that is itself a choice are listed among the others.
                    reasons.push(reason.strip_prefix(UNREAD).unwrap_or(&reason).to_owned());
                }
                read => return read,
            }
        }
        Err(Unmapped::other_form(format!("{UNREAD}{}", reasons.join("; "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::message::Message;

    #[test]
    fn the_first_mapping_that_knows_the_form_answers() {
        fn other(_: &Malformed) -> Result<ForeignMessage, Unmapped> {
            Err(Unmapped::other_form("other"))
        }
        fn broken(_: &Malformed) -> Result<ForeignMessage, Unmapped> {
            Err(Unmapped::invalid("broken"))
        }
        let unread = first([other, other])(&Malformed::default()).unwrap_err();
        assert_eq!(unread, Unmapped::other_form("no mapping reads this delivery: other; other"));
        let nested = first([any, other])(&Malformed::default()).unwrap_err().to_string();
        assert_eq!(nested.matches(UNREAD).count(), 1, "{nested}");
        let read = first([other, broken, by_arrival])(&Malformed::default());
        assert_eq!(read.unwrap_err(), Unmapped::invalid("broken"));
    }

    /// A record with these headers; the time of the broker is 2026-11-27 20:00.
    fn record(topic: &str, headers: &[(&str, &str)], body: &str) -> Malformed {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Malformed {
            topic: topic.to_owned(),
            headers: headers.iter().map(|(name, value)| pair(name, value)).collect(),
            properties: vec![pair("kafka.timestamp", "2026-11-27T20:00:00Z")],
            payload: bytes::Bytes::copy_from_slice(body.as_bytes()),
            ..Malformed::default()
        }
    }

    #[test]
    fn a_record_of_the_outbox_router_keeps_its_form_whatever_headers_it_adds() {
        const TOPIC: &str = "outbox.event.orders";
        const WRAPPED: &str = r#"{"schema":{"type":"string"},"payload":"{\"op\":7}"}"#;
        let at = time::macros::datetime!(2026-11-27 20:00 UTC);
        let id = MessageId::derived(at, [TOPIC, "17"]).unwrap();
        for headers in [
            &[("id", "17"), ("timestamp", "1795809600"), ("contentType", "x")][..],
            &[("id", "17"), ("timestamp", "1795809600000"), ("JavaType", "x")],
            &[("id", "17"), ("task", "bill"), ("lang", "py")],
            &[("id", "17"), ("message-type", "x"), ("attempts", "0")],
        ] {
            let message = Message::from(any(&record(TOPIC, headers, WRAPPED)).unwrap());
            assert_eq!((message.id, &message.payload[..]), (id, &br#"{"op":7}"#[..]), "{headers:?}");
            assert_eq!(message.kind.as_str(), "orders", "{headers:?}");
        }
    }

    #[test]
    fn an_id_that_may_name_a_thing_of_several_events_recognises_no_form() {
        let entity = record("orders", &[("id", "17")], "{}");
        let error = any(&entity).unwrap_err();
        assert!(error.is_other_form() && error.to_string().contains("not a UUID"), "{error}");
        assert!(debezium_outbox(&entity).is_ok(), "the mapping that is named reads it");
        let uuid = "0d3ba1ff-6b3a-4ba4-a2b9-7e3d2f1c7a11";
        for id in [uuid.to_owned(), format!("\"{uuid}\"")] {
            let read = any(&record("orders", &[("id", &id), ("timestamp", "1")], "{}"));
            assert_eq!(Message::from(read.unwrap()).kind.as_str(), "orders");
        }
    }
}
