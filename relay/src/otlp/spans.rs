//! Converts publish attempts into spans, by OpenTelemetry's conventions for messaging.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use message::TraceContext;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use tokio::sync::mpsc;

use super::resource::{attribute, text};
use super::sampling::Sampling;
use engine::telemetry::{SendFailure, SendSpan, SpanRecorder};

/// The flag of a sampled context, and the flags that mark a linked context as one from another
/// process.
const SAMPLED: u32 = 0x01;
const FROM_ELSEWHERE: u32 = 0x300;

/// Puts spans into the queue of the export, and never waits for it.
pub(super) struct Spans {
    queue: mpsc::Sender<Span>,
    sampling: Sampling,
    dropped: Arc<AtomicU64>,
}

impl Spans {
    pub(super) fn new(queue: mpsc::Sender<Span>, share: f64, dropped: Arc<AtomicU64>) -> Self {
        Self { queue, sampling: Sampling::new(share), dropped }
    }
}

impl SpanRecorder for Spans {
    fn sent(&self, sent: &SendSpan<'_>) {
        let trace_id: u128 = rand::random::<u128>().max(1);
        if !self.sampling.takes(sent.message.trace.as_ref(), trace_id) {
            return;
        }
        match self.queue.try_reserve() {
            Ok(room) => room.send(span(sent, trace_id, rand::random::<u64>().max(1))),
            Err(_) => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Returns the span of an attempt: the root of its own trace, linked to the context in which the
/// producer enqueued the message.
fn span(sent: &SendSpan<'_>, trace_id: u128, span_id: u64) -> Span {
    let ended = nanos(sent.ended_at);
    let took = u64::try_from(sent.took.as_nanos()).unwrap_or(u64::MAX);
    Span {
        trace_id: trace_id.to_be_bytes().to_vec(),
        span_id: span_id.to_be_bytes().to_vec(),
        flags: SAMPLED,
        name: format!("send {}", sent.message.topic),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: ended.saturating_sub(took),
        end_time_unix_nano: ended,
        attributes: attributes(sent),
        links: sent.message.trace.as_ref().and_then(link).into_iter().collect(),
        status: sent.failure.map(status),
        ..Span::default()
    }
}

fn attributes(sent: &SendSpan<'_>) -> Vec<KeyValue> {
    let (message, system) = (sent.message, system(sent.destination));
    let mut attributes = vec![
        text("messaging.system", system),
        text("messaging.operation.name", "send"),
        text("messaging.operation.type", "send"),
        text("messaging.destination.name", message.topic.as_str()),
        text("messaging.message.id", message.id.to_string()),
        text("outbox.relay", sent.relay),
        text("outbox.message.type", message.kind.as_str()),
    ];
    let int = |size: usize| Value::IntValue(i64::try_from(size).unwrap_or(i64::MAX));
    attributes.push(attribute("messaging.message.body.size", int(message.payload.len())));
    if let Some(key) = &message.key {
        attributes.push(text("outbox.message.key", key.as_str()));
        if system == "kafka" {
            attributes.push(text("messaging.kafka.message.key", key.as_str()));
        }
    }
    if let Some(attempt) = sent.attempt {
        attributes.push(attribute("outbox.attempt", Value::IntValue(attempt.into())));
    }
    if let Some(SendFailure { fault, scope }) = sent.failure {
        attributes.push(text("error.type", format!("{}.{}", fault.as_str(), scope.as_str())));
    }
    attributes
}

/// Returns the conventional name of the broker, which a destination begins with.
fn system(destination: &str) -> &str {
    match destination.split(' ').next().unwrap_or_default() {
        "sqs" => "aws_sqs",
        system => system,
    }
}

fn status(SendFailure { fault, scope }: SendFailure) -> Status {
    let (fault, scope) = (fault.as_str(), scope.as_str());
    let message = format!("not confirmed; fault: {fault}, scope: {scope}; the log has the broker's answer");
    Status { message, code: StatusCode::Error.into() }
}

fn link(context: &TraceContext) -> Option<Link> {
    let trace_id = u128::from_str_radix(context.trace_id(), 16).ok()?;
    let span_id = u64::from_str_radix(context.span_id(), 16).ok()?;
    Some(Link {
        trace_id: trace_id.to_be_bytes().to_vec(),
        span_id: span_id.to_be_bytes().to_vec(),
        trace_state: context.state().unwrap_or_default().to_owned(),
        flags: FROM_ELSEWHERE | u32::from(context.is_sampled()),
        ..Link::default()
    })
}

pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
