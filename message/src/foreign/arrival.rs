//! Deliveries without an id of their own: their place at the broker is their id.

use super::cloud_event::refuse_chunk;
use super::identity;
use super::unmapped::Unmapped;
use crate::foreign_message::ForeignMessage;
use crate::id::MessageId;
use crate::subscription::Malformed;

/// Reads any delivery by its place at the broker, with the topic as its kind: topic, partition and
/// offset (Kafka), or the id that the broker gave it (SQS). [`ForeignMessage::kind`] sets another
/// kind.
///
/// Every redelivery has the same id. A message that its producer sends twice, or that is copied to
/// another topic, has two: prefer an id of the producer where there is one.
///
/// # Errors
/// [`Unmapped::OtherForm`]: the broker gives neither place nor id (RabbitMQ), or no time.
/// [`Unmapped::Invalid`]: the topic or the time is invalid, or this is a chunk of a larger message.
pub fn by_arrival(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    refuse_chunk(malformed)?;
    let kind = malformed.topic.as_str();
    Ok(malformed.to_message(place_id(malformed)?, kind)?)
}

/// Returns the id of a delivery that is its place at the broker.
pub(super) fn place_id(malformed: &Malformed) -> Result<MessageId, Unmapped> {
    let Some(at) = malformed.timestamp() else {
        return Err(Unmapped::other_form("the delivery has no time of the broker"));
    };
    if let Some(id) = malformed.property("sqs.MessageId") {
        return identity::identity(malformed, &malformed.topic, id, Some(at));
    }
    let place = malformed.find("kafka.partition").zip(malformed.find("kafka.offset"));
    let Some((partition, offset)) = place else {
        return Err(Unmapped::other_form("the broker gives the delivery neither a place nor an id"));
    };
    Ok(MessageId::derived(at, [malformed.topic.as_str(), partition, offset])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_place_is_an_id_and_each_place_another() {
        let at = |offset: &str| {
            let malformed = Malformed {
                topic: String::from("orders"),
                properties: vec![pair("kafka.timestamp", "2026-11-27T20:00:00Z")],
                broker_notes: vec![pair("kafka.partition", "3"), pair("kafka.offset", offset)],
                ..Malformed::default()
            };
            Message::from(by_arrival(&malformed).unwrap())
        };
        assert_eq!((at("1").id, at("1").kind.as_str()), (at("1").id, "orders"));
        assert_ne!(at("1").id, at("2").id);
        let queued = |id: &str| {
            let sent = pair("sqs.SentTimestamp", "2026-11-27T20:00:00Z");
            let properties = vec![sent, pair("sqs.MessageId", id)];
            let malformed = Malformed { topic: String::from("orders"), properties, ..Malformed::default() };
            Message::from(by_arrival(&malformed).unwrap()).id
        };
        assert_eq!(queued("a"), queued("a"));
        assert_ne!(queued("a"), queued("b"));
    }

    #[test]
    fn without_a_place_there_is_no_id() {
        let malformed = Malformed {
            properties: vec![pair("amqp.timestamp", "2026-11-27T20:00:00Z")],
            ..Malformed::default()
        };
        assert!(by_arrival(&malformed).unwrap_err().is_other_form());
        let chunk = Malformed { headers: vec![pair("ce_chunkindex", "0")], ..Malformed::default() };
        assert!(by_arrival(&chunk).unwrap_err().to_string().contains("a chunk"));
    }
}
