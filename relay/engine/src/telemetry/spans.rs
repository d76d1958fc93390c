//! Attempts to publish, as spans. The engine knows no tracing library: a recorder of the process
//! makes spans of what is told here.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use message::{Fault, FaultScope, Message};

/// One attempt to publish a message, told when the broker's receipt is in.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SendSpan<'a> {
    /// The relay's name.
    pub relay: &'a str,
    /// The broker: its kind, a space, and where it is.
    pub destination: &'a str,
    /// The message. Its payload and headers belong into no span.
    pub message: &'a Message,
    /// The number of this attempt, from 1, of those that counted; `None` when it is not known.
    pub attempt: Option<u32>,
    /// When the receipt was in.
    pub ended_at: SystemTime,
    /// How long before that the message was handed to the broker's client.
    pub took: Duration,
    /// The failure, when the broker did not confirm the message.
    pub failure: Option<SendFailure>,
}

/// A receipt that is not a confirmation. Its text is in the log, under the message's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFailure {
    /// Whose fault.
    pub fault: Fault,
    /// How far it reaches.
    pub scope: FaultScope,
}

/// Records spans for the process. It is called between two steps of the engine: it must be quick,
/// and must neither wait nor panic.
pub trait SpanRecorder: Send + Sync + 'static {
    /// Records an attempt, or leaves it out.
    fn sent(&self, span: &SendSpan<'_>);
}

/// The process has a recorder of spans already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpansRecordedAlready;

impl std::fmt::Display for SpansRecordedAlready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this process has a recorder of spans already; set one, before any pipeline runs")
    }
}

impl std::error::Error for SpansRecordedAlready {}

static RECORDER: OnceLock<Box<dyn SpanRecorder>> = OnceLock::new();

/// Makes this the recorder of all pipelines of the process that begin to run from now on.
///
/// # Errors
/// [`SpansRecordedAlready`] when there is one.
pub fn set_span_recorder(recorder: impl SpanRecorder) -> Result<(), SpansRecordedAlready> {
    RECORDER.set(Box::new(recorder)).map_err(|_| SpansRecordedAlready)
}

pub(super) fn recorder() -> Option<&'static dyn SpanRecorder> {
    RECORDER.get().map(AsRef::as_ref)
}
