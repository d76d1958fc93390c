//! Evidence of an SQS message that is not one of ours: everything besides body and attribute texts.
//! Pure.

use aws_sdk_sqs::types::{Message as Received, MessageSystemAttributeName as SystemAttribute};
use message::cloudevents::format_unix_ms;

use super::wire::STRING;
use crate::evidence::hex;

/// Everything that arrived besides body and attribute texts.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The same in every delivery of the message.
    pub(super) properties: Vec<(String, String)>,
    /// Counted by SQS with each delivery.
    pub(super) notes: Vec<(String, String)>,
}

impl Evidence {
    /// Collects the evidence of a message, named as in `docs/wire.md`.
    pub(super) fn of(message: &Received) -> Self {
        let mut evidence = Self::default();
        let id = message.message_id().map(|id| (String::from("sqs.MessageId"), id.to_owned()));
        evidence.properties.extend(id);
        for (name, value) in message.attributes().into_iter().flatten() {
            let entry = (format!("sqs.{}", name.as_str()), text(name, value));
            match name {
                SystemAttribute::ApproximateReceiveCount
                | SystemAttribute::ApproximateFirstReceiveTimestamp => evidence.notes.push(entry),
                _ => evidence.properties.push(entry),
            }
        }
        for (name, value) in message.message_attributes().into_iter().flatten() {
            if value.data_type() != STRING {
                let kind = (format!("sqs.attribute_type.{name}"), value.data_type().to_owned());
                evidence.properties.push(kind);
            }
            if let Some(bytes) = value.binary_value() {
                evidence.properties.push((format!("sqs.attribute_hex.{name}"), hex(bytes.as_ref())));
            }
        }
        evidence.properties.sort_unstable();
        evidence.notes.sort_unstable();
        evidence
    }
}

/// Returns the value of a system attribute, with times as RFC 3339.
fn text(name: &SystemAttribute, value: &str) -> String {
    let at_ms = match name {
        SystemAttribute::SentTimestamp | SystemAttribute::ApproximateFirstReceiveTimestamp => {
            value.parse::<i64>().ok()
        }
        _ => None,
    };
    at_ms.map_or_else(|| value.to_owned(), format_unix_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_sqs::primitives::Blob;
    use aws_sdk_sqs::types::MessageAttributeValue;

    fn attribute(kind: &str) -> aws_sdk_sqs::types::builders::MessageAttributeValueBuilder {
        MessageAttributeValue::builder().data_type(kind)
    }

    #[test]
    fn ids_times_types_and_bytes_are_kept_and_counts_are_notes() {
        let message = Received::builder()
            .message_id("m-1")
            .receipt_handle("another one in each delivery")
            .attributes(SystemAttribute::SentTimestamp, "1700000000123")
            .attributes(SystemAttribute::SenderId, "AIDA")
            .attributes(SystemAttribute::ApproximateReceiveCount, "3")
            .attributes(SystemAttribute::ApproximateFirstReceiveTimestamp, "1700000000124")
            .message_attributes("tenant", attribute("String").string_value("acme").build().unwrap())
            .message_attributes("n", attribute("Number").string_value("7").build().unwrap())
            .message_attributes("raw", attribute("Binary").binary_value(Blob::new([0, 255])).build().unwrap())
            .build();
        let Evidence { properties, notes } = Evidence::of(&message);
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(
            properties,
            [
                ("sqs.MessageId", "m-1"),
                ("sqs.SenderId", "AIDA"),
                ("sqs.SentTimestamp", "2023-11-14T22:13:20.123Z"),
                ("sqs.attribute_hex.raw", "00ff"),
                ("sqs.attribute_type.n", "Number"),
                ("sqs.attribute_type.raw", "Binary"),
            ]
            .map(pair)
        );
        assert_eq!(
            notes,
            [
                ("sqs.ApproximateFirstReceiveTimestamp", "2023-11-14T22:13:20.124Z"),
                ("sqs.ApproximateReceiveCount", "3"),
            ]
            .map(pair)
        );
    }
}
