//! The stored part of a response, and its encoding in the database.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// First byte of a stored response: the version of its encoding.
const VERSION: u8 = 1;

/// Headers that are never stored: they apply to one exchange, to one connection, or to the caller
/// that is currently logged in.
const NEVER: [&str; 22] = [
    // Hop-by-hop headers (RFC 9110, 7.6.1), and those that the server sets for each message.
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "date",
    "age",
    // The replay may go to a caller other than the one that received these.
    "set-cookie",
    "authorization",
    "www-authenticate",
    "authentication-info",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
    // These describe momentary limits, or this exchange.
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "idempotency-replayed",
    "idempotency-key",
];

/// Prefixes of headers about limits, in forms older than the RateLimit draft.
const NEVER_PREFIXES: [&str; 2] = ["ratelimit-", "x-ratelimit-"];

/// A response without its extensions, as it is stored and replayed byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The stored headers, in their order.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// The error for bytes that are not a stored response, or that a newer version wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value stored under an idempotency key is not a response that this build can read")]
pub struct NotAResponse;

/// Returns whether a status is stored by default: 2xx to 4xx, except those that another try may get
/// past without a new key (401, 403, 408, 409, 425, 429). 5xx is never stored.
#[must_use]
pub fn is_stored_by_default(status: StatusCode) -> bool {
    (200..500).contains(&status.as_u16()) && !matches!(status.as_u16(), 401 | 403 | 408 | 409 | 425 | 429)
}

impl StoredResponse {
    /// Extracts the part of a response that is stored.
    #[must_use]
    pub fn of(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Self {
        let named: Vec<String> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
            .collect();
        let is_kept = |name: &HeaderName| {
            let name = name.as_str();
            !NEVER.contains(&name)
                && !NEVER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !named.iter().any(|hop| hop == name)
        };
        let headers = headers
            .iter()
            .filter(|(name, _)| is_kept(name))
            .map(|(name, value)| (name.clone(), value.clone()));
        Self { status, headers: headers.collect(), body }
    }

    /// Encodes the response as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.status.as_u16().to_be_bytes());
        bytes.extend(length(self.headers.len()));
        for (name, value) in &self.headers {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                bytes.extend(length(part.len()));
                bytes.extend(part);
            }
        }
        bytes.extend(&self.body);
        bytes
    }

    /// Decodes a response from bytes.
    ///
    /// # Errors
    /// [`NotAResponse`] for bytes that [`encode`](Self::encode) did not make.
    pub fn decode(mut bytes: Bytes) -> Result<Self, NotAResponse> {
        if bytes.first() != Some(&VERSION) {
            return Err(NotAResponse);
        }
        bytes = bytes.slice(1..);
        let status = take(&mut bytes, 2)?;
        let status = u16::from_be_bytes(status[..].try_into().map_err(|_| NotAResponse)?);
        let status = StatusCode::from_u16(status).map_err(|_| NotAResponse)?;
        let mut headers = HeaderMap::new();
        for _ in 0..take_length(&mut bytes)? {
            let name = take_part(&mut bytes)?;
            let value = take_part(&mut bytes)?;
            let name = HeaderName::from_bytes(&name).map_err(|_| NotAResponse)?;
            let value = HeaderValue::from_maybe_shared(value).map_err(|_| NotAResponse)?;
            // The number of headers in a map is limited.
            headers.try_append(name, value).map_err(|_| NotAResponse)?;
        }
        Ok(Self { status, headers, body: bytes })
    }
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, NotAResponse> {
    if bytes.len() < count { Err(NotAResponse) } else { Ok(bytes.split_to(count)) }
}

fn take_length(bytes: &mut Bytes) -> Result<usize, NotAResponse> {
    let length = take(bytes, 4)?;
    Ok(u32::from_be_bytes(length[..].try_into().map_err(|_| NotAResponse)?) as usize)
}

fn take_part(bytes: &mut Bytes) -> Result<Bytes, NotAResponse> {
    let length = take_length(bytes)?;
    take(bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_is_stored_comes_back_byte_for_byte() {
        let headers =
            headers(&[("link", b"<a>"), ("content-type", b"text/plain"), ("link", b"<b>"), ("x", b"\xff ")]);
        let response = StoredResponse::of(StatusCode::CREATED, &headers, Bytes::from_static(b"\x00\xffbody"));
        assert_eq!(StoredResponse::decode(response.encode().into()), Ok(response.clone()));
        let links: Vec<_> = response.headers.get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"]);
    }

    #[test]
    fn what_holds_for_one_exchange_only_is_not_stored() {
        let headers = headers(&[
            ("set-cookie", b"session=secret"),
            ("www-authenticate", b"Basic"),
            ("connection", b"close, X-Hop"),
            ("x-hop", b"1"),
            ("ratelimit-remaining", b"3"),
            ("x-ratelimit-reset", b"7"),
            ("date", b"now"),
            ("retry-after", b"1"),
            ("location", b"/orders/7"),
        ]);
        let stored = StoredResponse::of(StatusCode::OK, &headers, Bytes::new());
        assert_eq!(stored.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["location"]);
    }

    #[test]
    fn any_other_bytes_are_refused() {
        let whole = StoredResponse::of(StatusCode::OK, &headers(&[("a", b"b")]), Bytes::new()).encode();
        for end in 0..whole.len() {
            assert_eq!(StoredResponse::decode(Bytes::copy_from_slice(&whole[..end])), Err(NotAResponse));
        }
        assert_eq!(StoredResponse::decode(Bytes::from_static(b"\x02\x00\xc8")), Err(NotAResponse));
        let long = [&[1, 0, 200][..], &[0, 0, 0, 1], &[255; 4]].concat();
        assert_eq!(StoredResponse::decode(long.into()), Err(NotAResponse));
    }

    #[test]
    fn statuses_that_another_try_may_get_past_are_not_stored() {
        for (status, stored) in [
            (200, true),
            (201, true),
            (303, true),
            (400, true),
            (404, true),
            (422, true),
            (401, false),
            (403, false),
            (408, false),
            (409, false),
            (425, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(is_stored_by_default(StatusCode::from_u16(status).unwrap()), stored, "{status}");
        }
    }
}
