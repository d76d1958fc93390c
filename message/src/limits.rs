//! Size limits of destinations.

use std::fmt;

use crate::message::Message;
use crate::text::TEXT_BYTES_MAX;

/// The largest message that a destination accepts, checked at enqueue so that an oversize message
/// fails in the producer and not hours later in the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimit {
    /// The destination's name, for the error.
    pub destination: &'static str,
    /// The largest size in bytes of payload, key, headers and envelope together.
    pub message_bytes_max: usize,
}

/// A message over its destination's limit. The producer's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oversize {
    /// The message.
    pub id: crate::MessageId,
    /// Its topic.
    pub topic: crate::Topic,
    /// The part of the message that is too large.
    pub part: OversizePart,
    /// The size of this part in bytes.
    pub bytes: usize,
    /// The destination.
    pub destination: &'static str,
    /// The limit in bytes.
    pub bytes_max: usize,
}

/// The part of a message that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OversizePart {
    /// All of it.
    Message,
    /// Its headers and envelope, for a message that would be sent in chunks: every chunk repeats
    /// them, and they may take up half of a chunk.
    Envelope,
}

impl fmt::Display for Oversize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, topic, bytes, destination, bytes_max, .. } = self;
        match self.part {
            OversizePart::Message => write!(
                f,
                "message {id} for topic {topic} has {bytes} bytes with its envelope; {destination} takes at most \
                 {bytes_max}: shorten the payload, store it elsewhere and send a reference, or raise the limit, in \
                 the relay and in its producers"
            ),
            OversizePart::Envelope => write!(
                f,
                "message {id} for topic {topic} has {bytes} bytes of headers and envelope, which each of its chunks \
                 repeats; they take at most {bytes_max}, half of a chunk: shorten the headers, or raise \
                 message_bytes_max of the relay"
            ),
        }
    }
}

impl std::error::Error for Oversize {}

impl SizeLimit {
    /// Kafka: `message.max.bytes`, 1,000,000 in librdkafka, 1,048,588 in the broker; the smaller
    /// one counts.
    pub const KAFKA: Self = Self { destination: "Kafka", message_bytes_max: 1_000_000 };
    /// RabbitMQ: `max_message_size`, 16 MiB since 4.0.
    pub const RABBITMQ: Self = Self { destination: "RabbitMQ", message_bytes_max: 16 << 20 };
    /// SQS: 1 MiB, body and attributes together (SQS quotas, August 2025).
    pub const SQS: Self = Self { destination: "SQS", message_bytes_max: 1 << 20 };
    /// HTTP: the protocol has no limit, but receivers and proxies do. 1 MiB, the default of nginx
    /// (`client_max_body_size`), headers included.
    pub const HTTP: Self = Self { destination: "HTTP", message_bytes_max: 1 << 20 };
    /// The largest message that every supported destination accepts. SQS carries a payload that is
    /// not JSON as base64, which is a third longer, so it accepts about 780,000 bytes of such a
    /// payload.
    pub const PORTABLE: Self = Self { destination: "every broker", message_bytes_max: 1_000_000 };
    /// The largest message that a relay with `oversize = "chunk"` accepts by default. Such a relay
    /// splits messages that are larger than its broker accepts. Use it only for topics whose relays
    /// have this setting and whose consumers reassemble chunks: other relays park such a message,
    /// and other consumers dead-letter it.
    pub const CHUNKED: Self = Self {
        destination: "a relay that splits",
        message_bytes_max: crate::chunk::CHUNKED_BYTES_MAX_DEFAULT,
    };

    /// Checks a message.
    ///
    /// # Errors
    /// [`Oversize`] with size, limit and destination.
    pub fn check(&self, message: &Message) -> Result<(), Oversize> {
        if message.wire_bytes() <= self.message_bytes_max { Ok(()) } else { Err(self.exceeded_by(message)) }
    }

    /// Checks a message that has no source yet: it passes if it fits with the longest possible
    /// source. The relay sets the source, so a message that passes fits for every relay.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    #[doc(hidden)]
    pub fn check_without_source(&self, message: &Message) -> Result<(), Oversize> {
        let bytes = message.wire_bytes() - message.source.as_str().len() + TEXT_BYTES_MAX;
        if bytes <= self.message_bytes_max {
            return Ok(());
        }
        Err(Oversize { bytes, ..self.exceeded_by(message) })
    }

    pub(crate) fn exceeded_by(&self, message: &Message) -> Oversize {
        Oversize {
            id: message.id,
            topic: message.topic.clone(),
            part: OversizePart::Message,
            bytes: message.wire_bytes(),
            destination: self.destination,
            bytes_max: self.message_bytes_max,
        }
    }
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.destination, self.message_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventType, Topic};

    #[test]
    fn an_oversize_message_names_size_limit_and_destination() {
        let topic = Topic::new("orders").unwrap();
        let kind = EventType::new("order.placed").unwrap();
        let fits = Message::new(topic.clone(), kind.clone(), vec![0; 1000]);
        assert!(SizeLimit::SQS.check(&fits).is_ok());
        let over = Message::new(topic, kind, vec![0; 1 << 20]);
        let refused = SizeLimit::SQS.check(&over).unwrap_err();
        assert_eq!((refused.bytes, refused.bytes_max), (over.wire_bytes(), 1 << 20));
        assert!(refused.bytes > 1 << 20, "the payload alone fills the limit");
        let text = refused.to_string();
        assert!(text.contains("SQS takes at most 1048576") && text.contains("orders"), "{text}");
        assert!(text.contains(&format!("has {} bytes", over.wire_bytes())), "{text}");
    }

    #[test]
    fn a_message_of_exactly_the_limit_fits_and_one_byte_more_does_not() {
        let of =
            |bytes| Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), vec![0; bytes]);
        let envelope = of(0).wire_bytes();
        let largest = SizeLimit::SQS.message_bytes_max - envelope;
        assert_eq!(SizeLimit::SQS.check(&of(largest)), Ok(()));
        let refused = SizeLimit::SQS.check(&of(largest + 1)).unwrap_err();
        assert_eq!(refused.bytes, refused.bytes_max + 1);
    }
}
