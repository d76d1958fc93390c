//! The spans of processing, and how they join the trace of a message's producer.

use message::Message;
use tracing::Span;

use super::store::Store;
use super::worker::Worker;

impl<S: Store> Worker<S> {
    /// Returns the span in which one message is processed. It has OpenTelemetry names only when an
    /// adapter reads them, because log lines show the fields too.
    pub(super) fn process_span(&self, message: &Message, origin: &str) -> Span {
        let key = message.key.as_ref().map(message::OrderingKey::as_str);
        let trace_id = message.trace.as_ref().map(message::TraceContext::trace_id);
        let Some(join) = &self.traces else {
            return tracing::info_span!("process", consumer = %self.consumer, message_id = %message.id,
                topic = %message.topic, key, origin, trace_id);
        };
        let span = tracing::info_span!("process", consumer = %self.consumer, message_id = %message.id,
            topic = %message.topic, key, origin, trace_id, otel.name = %format_args!("process {}", message.topic),
            otel.kind = "consumer");
        join.child(&span, message);
        span
    }

    /// Returns the span in which many messages are processed in one transaction.
    pub(super) fn batch_span(&self, messages: &[&Message]) -> Span {
        let Some(join) = &self.traces else { return Span::none() };
        let span = tracing::info_span!("process_batch", consumer = %self.consumer, messages = messages.len(),
            otel.name = "process batch", otel.kind = "consumer");
        messages.iter().for_each(|message| join.link(&span, message));
        span
    }
}
