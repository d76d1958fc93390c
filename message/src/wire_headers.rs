//! Bounds of the headers of a delivery, the same for every broker. Pure.
//!
//! A broker limits the bytes of a record, often after compression, and not the number of its
//! headers. So an adapter counts them before it copies any.

use std::fmt;

/// The maximum number of headers of a delivery, with those of the envelope. A message has at most
/// [`HEADERS_MAX`](crate::HEADERS_MAX) of its own; more are left out up to this number. A delivery
/// with more than this is malformed.
pub const WIRE_HEADERS_MAX: usize = 4_000;

/// The maximum bytes of all names and values of a delivery's headers: twice what the largest
/// accepted headers take. A delivery with more is malformed.
pub const WIRE_HEADER_BYTES_MAX: usize = 16 << 20;

/// The number of headers that are kept from a delivery with too many.
const KEPT_MAX: usize = 1_000;

/// The bytes of headers that are kept from a delivery with too many.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Maximum characters of a name in a text.
const NAME_CHARS_MAX: usize = 64;

/// The number of headers of a delivery, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireHeaders {
    /// The number of headers.
    pub count: usize,
    /// The bytes of their names and values.
    pub bytes: usize,
}

/// The bounds of a delivery's headers are exceeded, or its headers cannot be read. Decides which of
/// them are kept as evidence: the first ones that fit, at most 1,000 with 1 MiB.
#[derive(Debug, Clone)]
pub struct HeadersCut {
    problem: String,
    count: usize,
    kept: WireHeaders,
    left_out: Option<String>,
}

impl WireHeaders {
    /// Adds a header with a name and a value of these lengths.
    pub fn add(&mut self, name_bytes: usize, value_bytes: usize) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(name_bytes).saturating_add(value_bytes);
    }

    /// Checks the headers against [`WIRE_HEADERS_MAX`] and [`WIRE_HEADER_BYTES_MAX`].
    ///
    /// # Errors
    /// [`HeadersCut`], which decides what is kept.
    pub fn check(self) -> Result<(), HeadersCut> {
        let advice = "put the rest into the payload";
        let problem = if self.count > WIRE_HEADERS_MAX {
            format!("there are {} headers; at most {WIRE_HEADERS_MAX} are accepted: {advice}", self.count)
        } else if self.bytes > WIRE_HEADER_BYTES_MAX {
            let Self { bytes, .. } = self;
            format!("the headers have {bytes} bytes; at most {WIRE_HEADER_BYTES_MAX} are accepted: {advice}")
        } else {
            return Ok(());
        };
        Err(HeadersCut::new(problem, self.count))
    }
}

impl HeadersCut {
    /// Cuts the `count` headers of a delivery for this problem.
    #[must_use]
    pub fn new(problem: impl Into<String>, count: usize) -> Self {
        Self { problem: problem.into(), count, kept: WireHeaders::default(), left_out: None }
    }

    /// Returns whether the next header is kept. To be asked once for each header, in their order,
    /// before it is copied.
    pub fn keeps(&mut self, name: &str, value_bytes: usize) -> bool {
        let mut kept = self.kept;
        kept.add(name.len(), value_bytes);
        if kept.count <= KEPT_MAX && kept.bytes <= KEPT_BYTES_MAX {
            self.kept = kept;
            return true;
        }
        self.left_out.get_or_insert_with(|| {
            let name: String = name.chars().take(NAME_CHARS_MAX).collect();
            format!("{name:?} with {value_bytes} bytes")
        });
        false
    }

    /// Returns how many headers are kept, for the dead letter.
    #[must_use]
    pub fn note(&self) -> String {
        let first = self.left_out.as_ref().map(|header| format!("; the first one left out: {header}"));
        format!("{} of {} headers are kept{}", self.kept.count, self.count, first.unwrap_or_default())
    }
}

impl fmt::Display for HeadersCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX, TEXT_BYTES_MAX};

    #[test]
    fn every_message_within_its_own_bounds_is_within_those_of_the_wire() {
        let mut headers = WireHeaders::default();
        (0..HEADERS_MAX).for_each(|_| headers.add(TEXT_BYTES_MAX, HEADER_VALUE_BYTES_MAX));
        // The envelope, with chunk and trace.
        (0..16).for_each(|_| headers.add(32, HEADER_VALUE_BYTES_MAX));
        assert!(headers.check().is_ok(), "{headers:?}");
    }

    #[test]
    fn one_header_or_byte_above_the_bounds_is_refused() {
        let most = WireHeaders { count: WIRE_HEADERS_MAX, bytes: WIRE_HEADER_BYTES_MAX };
        assert!(most.check().is_ok());
        let many = WireHeaders { count: most.count + 1, ..most }.check().unwrap_err();
        let large = WireHeaders { bytes: most.bytes + 1, ..most }.check().unwrap_err();
        assert!(many.to_string().starts_with("there are 4001 headers; at most 4000 are"), "{many}");
        assert!(
            large.to_string().starts_with("the headers have 16777217 bytes; at most 16777216"),
            "{large}"
        );
    }

    #[test]
    fn what_fits_is_kept_in_its_order_and_the_rest_is_named() {
        let mut cut = HeadersCut::new("too large", 3);
        assert!(cut.keeps("a", 10));
        assert!(!cut.keeps(&"b".repeat(1_000), 90_000_000));
        assert!(cut.keeps("c", KEPT_BYTES_MAX - 12));
        let name = "b".repeat(64);
        let note = format!("2 of 3 headers are kept; the first one left out: {name:?} with 90000000 bytes");
        assert_eq!(cut.note(), note);
        let mut cut = HeadersCut::new("too many", 5_000);
        let kept = (0..5_000).filter(|_| cut.keeps("h", 1)).count();
        assert_eq!((kept, KEPT_MAX), (1_000, 1_000));
    }
}
