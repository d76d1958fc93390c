//! The trace context at the time of enqueueing, without a dependency on any tracing library.

use message::TraceContext;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Tells the trace context in which a message is enqueued; set it with
/// [`OutboxBuilder::capture`](crate::producer::OutboxBuilder::capture). An OpenTelemetry adapter
/// reads the current span here.
pub trait Capture: Send + Sync + 'static {
    /// The context of the current span, if there is one.
    fn capture(&self) -> Option<TraceContext>;
}

/// The default: the context that [`scope`] has set for the current task.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskLocal;

impl Capture for TaskLocal {
    fn capture(&self) -> Option<TraceContext> {
        CURRENT.try_with(Clone::clone).ok()
    }
}

/// Runs a future in which messages are enqueued with this context, unless they bring their own.
/// Does not reach into tasks spawned inside; [`Outbox::transaction`](crate::Outbox::transaction)
/// carries it over.
pub async fn scope<F: Future>(context: TraceContext, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}
