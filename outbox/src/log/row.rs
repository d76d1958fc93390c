//! From a row's columns to an entry, the same for every dialect.

use std::time::Duration;

use bytes::Bytes;
use message::{
    ContentType, EventType, Headers, Message, MessageId, OrderingKey, Source, Topic, TraceContext,
};
use time::OffsetDateTime;

use crate::log::entry::{Entry, EntryId, InvalidEntry};

/// The columns of a row, unchecked.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) message_id: String,
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) content_type: String,
    pub(crate) headers: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
    pub(crate) payload: Vec<u8>,
    pub(crate) enqueued_at: Option<OffsetDateTime>,
    pub(crate) deliver_in: Option<f64>,
}

impl Row {
    /// The entry; its message is an error when a column does not hold what a message needs.
    pub(crate) fn into_entry(mut self, source: &Source) -> Entry {
        let deliver_in = self.deliver_in.and_then(wait);
        let payload = Bytes::from(std::mem::take(&mut self.payload));
        let message = self.message(source, payload).map_err(|problem| InvalidEntry {
            message_id: self.message_id.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            problem,
        });
        Entry { id: EntryId(self.id), message, deliver_in }
    }

    fn message(&self, source: &Source, payload: Bytes) -> Result<Message, String> {
        let Some(time) = self.enqueued_at else {
            return Err(String::from("its row is gone from outbox_message; it cannot be published"));
        };
        let text = |error: message::InvalidText| error.to_string();
        let id: MessageId =
            self.message_id.parse().map_err(|error: message::id::InvalidId| error.to_string())?;
        let headers: Headers = match &self.headers {
            Some(json) => serde_json::from_str(json)
                .map_err(|error| format!("headers must be an object of texts: {error}"))?,
            None => Headers::new(),
        };
        Ok(Message {
            id,
            topic: Topic::new(self.topic.as_str()).map_err(text)?,
            key: self.key.as_deref().map(OrderingKey::new).transpose().map_err(text)?,
            kind: EventType::new(self.kind.as_deref().unwrap_or(&self.topic)).map_err(text)?,
            source: source.clone(),
            time,
            content_type: ContentType::new(self.content_type.as_str()).map_err(text)?,
            headers,
            trace: self.trace(),
            payload,
        })
    }

    /// A trace context that does not follow the W3C format is left out: it carries no identity, and nobody is
    /// helped by a message that is parked for it.
    fn trace(&self) -> Option<TraceContext> {
        TraceContext::new(self.traceparent.as_deref()?, self.tracestate.clone()).ok()
    }
}

/// Seconds to a wait; nothing when the time has come.
pub(crate) fn wait(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            id: 7,
            message_id: MessageId::new().to_string(),
            topic: String::from("orders"),
            content_type: String::from("application/json"),
            payload: b"{}".to_vec(),
            enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
            ..Row::default()
        }
    }

    fn source() -> Source {
        Source::new("/test").unwrap()
    }

    #[test]
    fn the_topic_stands_in_for_a_missing_kind() {
        let message = row().into_entry(&source()).message.unwrap();
        assert_eq!(message.kind.as_str(), "orders");
    }

    #[test]
    fn what_is_wrong_with_a_row_is_said() {
        let cases = [
            (Row { topic: "or ders".into(), ..row() }, "or ders"),
            (Row { headers: Some(r#"{"a":1}"#.into()), ..row() }, "headers"),
            (Row { headers: Some(r#"{"ce_id":"x"}"#.into()), ..row() }, "reserved"),
            (Row { message_id: "x".into(), ..row() }, "UUID"),
            (Row { enqueued_at: None, ..row() }, "gone"),
        ];
        for (row, expected) in cases {
            let invalid = row.into_entry(&source()).message.unwrap_err();
            assert!(invalid.problem.contains(expected), "{}", invalid.problem);
        }
    }

    #[test]
    fn an_invalid_trace_does_not_park_a_message() {
        let message = Row { traceparent: Some("x".into()), ..row() }.into_entry(&source()).message.unwrap();
        assert_eq!(message.trace, None);
    }

    #[test]
    fn waits_are_finite_and_positive() {
        assert_eq!(wait(1.5), Some(Duration::from_millis(1500)));
        for past in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            assert_eq!(wait(past), None);
        }
    }
}
