//! The trace context at the time of enqueueing, without a dependency on any tracing library.

use message::TraceContext;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// The source of a message's trace context at the time of enqueueing. Set it with
/// [`OutboxBuilder::capture`](crate::producer::OutboxBuilder::capture). An OpenTelemetry adapter
/// returns the current span here.
pub trait Capture: Send + Sync + 'static {
    /// Returns the context of the current span, if there is one.
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

/// Runs a future. Messages enqueued in it get this context unless they bring their own. Tasks
/// spawned inside do not inherit it; [`Outbox::transaction`](crate::Outbox::transaction) passes it
/// on.
pub async fn scope<F: Future>(context: TraceContext, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}
