//! W3C trace context (<https://www.w3.org/TR/trace-context/>), carried from the producer's span to the consumer's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::header::HeaderValue;
use crate::text::InvalidText;

/// The `traceparent` and optional `tracestate` of the span in which a message was enqueued;
/// forwarded unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    parent: String,
    state: Option<String>,
}

/// A `traceparent` or `tracestate` that does not follow the W3C format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTrace {
    /// The `traceparent` has another shape.
    #[error("traceparent {0:?} is not of the form 00-<32 hex>-<16 hex>-<2 hex>, with non-zero ids")]
    Parent(String),
    /// The `tracestate` cannot be a header value.
    #[error("tracestate is not a valid header value: {0}")]
    State(#[from] InvalidText),
}

impl TraceContext {
    /// Checks the two header values and keeps them.
    ///
    /// # Errors
    /// [`InvalidTrace`] when `parent` is not a version-00 traceparent with lower-case hexadecimal,
    /// non-zero ids, or `state` is not a header value.
    pub fn new(parent: impl Into<String>, state: Option<String>) -> Result<Self, InvalidTrace> {
        let parent = parent.into();
        if !is_traceparent(&parent) {
            return Err(InvalidTrace::Parent(parent.chars().take(64).collect()));
        }
        let state = state
            .filter(|state| !state.is_empty())
            .map(|state| HeaderValue::new(state).map(String::from))
            .transpose()?;
        Ok(Self { parent, state })
    }

    /// Returns the `traceparent` value.
    #[must_use]
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// Returns the `tracestate` value.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the 32 hexadecimal digits of the trace id.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        self.parent.get(3..35).unwrap_or_default()
    }

    /// Returns the 16 hexadecimal digits of the span's id.
    #[must_use]
    pub fn span_id(&self) -> &str {
        self.parent.get(36..52).unwrap_or_default()
    }

    /// Whether the sampled flag is set: the span is then recorded, as far as its process knows.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let flags = self.parent.get(53..55).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        flags.is_some_and(|flags| flags & 1 == 1)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parent)
    }
}

fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let non_zero = |part: &str| part.bytes().any(|b| b != b'0');
    let parts: Vec<&str> = text.split('-').collect();
    match parts.as_slice() {
        ["00", trace, span, flags] => {
            hex(trace, 32) && hex(span, 16) && hex(flags, 2) && non_zero(trace) && non_zero(span)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_w3c_example_is_accepted_and_its_variations_are_not() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::new(good, None).unwrap();
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((context.span_id(), context.is_sampled()), ("00f067aa0ba902b7", true));
        let flags = |flags: &str| TraceContext::new(format!("{}{flags}", &good[..53]), None).unwrap();
        assert!(!flags("00").is_sampled() && flags("03").is_sampled() && !flags("f2").is_sampled());
        for bad in [
            "",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra",
        ] {
            assert!(TraceContext::new(bad, None).is_err(), "{bad}");
        }
    }
}
