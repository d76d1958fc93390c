//! Attempts to publish, as spans. The engine knows no tracing library: the process sets a recorder
//! that turns these reports into spans.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use message::{Fault, FaultScope, Message};

/// One attempt to publish a message, reported when the broker's receipt has arrived.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SendSpan<'a> {
    /// The relay's name.
    pub relay: &'a str,
    /// The broker: its kind, a space, and its address.
    pub destination: &'a str,
    /// The message. Do not put its payload or headers into a span.
    pub message: &'a Message,
    /// The number of this attempt among those that count, from 1; `None` when it is not known.
    pub attempt: Option<u32>,
    /// When the receipt arrived.
    pub ended_at: SystemTime,
    /// Time from handing the message to the broker's client to the receipt.
    pub took: Duration,
    /// The failure, when the broker did not confirm the message.
    pub failure: Option<SendFailure>,
}

/// A receipt that is not a confirmation. Its text is in the log, under the message's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFailure {
    /// Party at fault.
    pub fault: Fault,
    /// How far the failure reaches.
    pub scope: FaultScope,
}

/// Records spans for the process. It is called between two steps of the engine: it must be quick,
/// and must neither wait nor panic.
pub trait SpanRecorder: Send + Sync + 'static {
    /// Records an attempt, or ignores it.
    fn sent(&self, span: &SendSpan<'_>);
}

/// The error that the process already has a recorder of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpansRecordedAlready;

impl std::fmt::Display for SpansRecordedAlready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this process already has a span recorder; set it only once, before any pipeline runs")
    }
}

impl std::error::Error for SpansRecordedAlready {}

static RECORDER: OnceLock<Box<dyn SpanRecorder>> = OnceLock::new();

/// Sets the recorder for all pipelines of the process that start to run after this call.
///
/// # Errors
/// [`SpansRecordedAlready`] when the process already has a recorder.
pub fn set_span_recorder(recorder: impl SpanRecorder) -> Result<(), SpansRecordedAlready> {
    RECORDER.set(Box::new(recorder)).map_err(|_| SpansRecordedAlready)
}

pub(super) fn recorder() -> Option<&'static dyn SpanRecorder> {
    RECORDER.get().map(AsRef::as_ref)
}
