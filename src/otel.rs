//! Spans of producers and consumers in one trace of OpenTelemetry.
//!
//! For services whose spans `tracing-opentelemetry` exports. [`CurrentSpan`] stores the context of
//! the producer's span with each message; [`Joined`] makes the span in which a consumer processes
//! the message its child. The relay between them forwards the context unchanged.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool, subscriber: impl message::Subscriber)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! # use message::Message;
//! # async fn bill(_: &mut inbox::Tx, _: &Message) -> Result<(), inbox::HandlerError> { Ok(()) }
//! use outbox_toolkit::inbox::{Consumer, Inbox, InboxOptions};
//! use outbox_toolkit::otel::{CurrentSpan, Joined};
//! use outbox_toolkit::outbox::Outbox;
//!
//! let outbox: Outbox<sqlx::Postgres> = Outbox::builder().capture(CurrentSpan).build();
//! Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
//!     .join_traces(Joined)
//!     .on_message("order.placed", bill)
//!     .subscribe(subscriber)
//!     .run(outbox_toolkit::shutdown_signal())
//!     .await?;
//! # let _ = outbox;
//! # Ok(()) }
//! ```

use std::str::FromStr as _;

use inbox::JoinTraces;
use message::{Message, TraceContext};
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use outbox::trace::Capture;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Captures the context of the span in which a message is enqueued: the current span of `tracing`,
/// or else the active span of OpenTelemetry itself. For
/// [`OutboxBuilder::capture`](outbox::OutboxBuilder::capture).
#[derive(Debug, Clone, Copy, Default)]
pub struct CurrentSpan;

impl Capture for CurrentSpan {
    fn capture(&self) -> Option<TraceContext> {
        stored(&Span::current().context()).or_else(|| stored(&Context::current()))
    }
}

/// Makes the span of a message's processing a child of the producer's span, and links the span of a
/// batch to all of them. For [`ConsumerBuilder::join_traces`](inbox::ConsumerBuilder::join_traces).
#[derive(Debug, Clone, Copy, Default)]
pub struct Joined;

impl JoinTraces for Joined {
    fn child(&self, span: &Span, message: &Message) {
        if let Some(producer) = message.trace.as_ref().and_then(remote) {
            // Fails for a span that has begun already, and for one that is not exported.
            let _ = span.set_parent(Context::new().with_remote_span_context(producer));
        }
        span.set_attribute("messaging.operation.name", "process");
        span.set_attribute("messaging.operation.type", "process");
        span.set_attribute("messaging.destination.name", message.topic.to_string());
        span.set_attribute("messaging.message.id", message.id.to_string());
        let size = i64::try_from(message.payload.len()).unwrap_or(i64::MAX);
        span.set_attribute("messaging.message.body.size", size);
    }

    fn link(&self, span: &Span, message: &Message) {
        if let Some(producer) = message.trace.as_ref().and_then(remote) {
            span.add_link(producer);
        }
    }
}

/// Returns the context of a span in the form that is stored with a message.
fn stored(context: &Context) -> Option<TraceContext> {
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return None;
    }
    let flags = span.trace_flags().to_u8();
    let parent = format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id());
    let state = span.trace_state().header();
    // A state that is not a valid header value is dropped: the trace continues without it.
    TraceContext::new(parent.clone(), Some(state)).or_else(|_| TraceContext::new(parent, None)).ok()
}

/// Returns the context of the producer's span, in another process.
fn remote(context: &TraceContext) -> Option<SpanContext> {
    let trace_id = TraceId::from_hex(context.trace_id()).ok()?;
    let span_id = SpanId::from_hex(context.span_id()).ok()?;
    let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    let state = context.state().and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    Some(SpanContext::new(trace_id, span_id, flags, true, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_comes_back_as_it_was_stored() -> Result<(), message::InvalidTrace> {
        for flags in ["00", "01"] {
            let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            let context = TraceContext::new(parent, Some(String::from("vendor=1")))?;
            let producer = remote(&context).map(|span| Context::new().with_remote_span_context(span));
            assert_eq!(producer.as_ref().and_then(stored), Some(context));
        }
        assert_eq!(stored(&Context::new()), None);
        Ok(())
    }
}
