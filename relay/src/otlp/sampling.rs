//! Selects the messages that get a span.

use message::TraceContext;

/// Samples like the producer. If the producer sampled a message's trace, the message gets a span
/// for this share of trace ids, by the rule of OpenTelemetry's SDK for Rust. Producers and
/// consumers with the same rule and share select the same traces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling {
    /// Ids whose random bits are below this value are sampled.
    below: u64,
}

/// The number of bits of a trace id that decide, as in OpenTelemetry's `TraceIdRatioBased` sampler.
const RANDOM_BITS: u32 = 63;

impl Sampling {
    /// Creates a sampler for a share of 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the share is clamped to 0 to 1, and its product fits into 64 bits"
    )]
    pub(super) fn new(share: f64) -> Self {
        Self { below: (share.clamp(0.0, 1.0) * (1_u64 << RANDOM_BITS) as f64) as u64 }
    }

    /// Returns whether a message gets a span. `own` is the trace id that its span would have.
    pub(super) fn takes(self, producer: Option<&TraceContext>, own: u128) -> bool {
        match producer {
            None => self.takes_id(own),
            Some(trace) if trace.is_sampled() => {
                self.takes_id(u128::from_str_radix(trace.trace_id(), 16).unwrap_or_default())
            }
            Some(_) => false,
        }
    }

    fn takes_id(self, id: u128) -> bool {
        // Like the ratio sampler of OpenTelemetry's SDK for Rust: the low half without its last
        // bit.
        let random = (id as u64) >> 1;
        random < self.below
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn context(flags: &str) -> TraceContext {
        TraceContext::new(format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}"), None)
            .unwrap()
    }

    #[test]
    fn a_trace_that_the_producer_left_out_stays_out() {
        let all = Sampling::new(1.0);
        assert!(all.takes(Some(&context("01")), 0) && all.takes(None, u128::MAX));
        assert!(!all.takes(Some(&context("00")), 0));
        let none = Sampling::new(0.0);
        assert!(!none.takes(Some(&context("01")), 0) && !none.takes(None, 0));
    }

    #[test]
    fn a_share_of_the_ids_is_taken() {
        let half = Sampling::new(0.5);
        let taken = (0..1_024_u128).filter(|number| half.takes(None, number << 54)).count();
        assert_eq!(taken, 512);
        let (below, above) = ((1_u128 << 63) - 1, 1_u128 << 63);
        assert!(half.takes(None, below) && !half.takes(None, above) && half.takes(None, 7 << 64));
        // The producer's trace id decides, not the relay's own.
        assert_eq!(half.takes(Some(&context("01")), 0), half.takes(Some(&context("01")), u128::MAX));
    }
}
