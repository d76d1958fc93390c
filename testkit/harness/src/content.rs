//! The parts of a message that must not change on its way, as plain clients and the toolkit see
//! them.

use checker::{Content, Digest};

/// The prefix of our own headers. A broker or a relay may add other headers.
pub const HEADER_PREFIX: &str = "storm-";

/// Returns the content of a message.
pub fn content<'a>(
    key: Option<&str>,
    payload: &[u8],
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Content {
    let own = headers.into_iter().filter(|(name, _)| name.starts_with(HEADER_PREFIX));
    Content {
        key: Some(key.unwrap_or_default().into()),
        payload: Some(Digest::of(payload)),
        headers: Some(Digest::of_headers(own)),
        fingerprint: None,
    }
}
