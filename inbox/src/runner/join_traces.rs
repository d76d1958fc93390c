//! The traces of producers, which the spans of a consumer join.

use message::Message;
use tracing::Span;

/// An adapter that joins the spans of a consumer to the traces of producers; set it with
/// [`ConsumerBuilder::join_traces`](super::ConsumerBuilder::join_traces). It is implemented for a
/// tracing library, as in the module `otel` of the crate `outbox-toolkit`: this crate depends on
/// none.
///
/// It is called before the span is entered. It must not panic.
pub trait JoinTraces: Send + Sync + 'static {
    /// Makes the span, which processes this message alone, a child of the span in which the message
    /// was enqueued ([`Message::trace`]).
    fn child(&self, span: &Span, message: &Message);

    /// Links the span, which processes this message with others, to the span in which the message
    /// was enqueued.
    fn link(&self, span: &Span, message: &Message);
}
