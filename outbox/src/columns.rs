//! The columns that producers write.

/// The columns of `outbox_message` that producers write, in the order of their statements.
#[doc(hidden)]
pub const ENQUEUED: &str =
    "message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at";
