//! The bytes of a request, kept beside the message that is made of them.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use message::Fingerprint;
use tonic::Status;

/// The largest request, in bytes: that of tonic, with the five bytes before the message.
const BYTES_MAX: usize = 4 * 1024 * 1024 + 5;

/// Messages inside of messages are told apart from other bytes down to this depth.
const DEPTH_MAX: u32 = 32;

/// The bytes of a unary request's message, as they came. The [`fingerprint`](Self::fingerprint) is
/// made of them and not of the message: what this build does with a field, or whether it knows the
/// field, must not decide whether a repeated call is the same.
#[derive(Debug, Clone)]
pub struct Received(Bytes);

/// A field of a message.
struct Field {
    number: usize,
    /// An entry of a map, by which entries are sorted. Other fields of one number keep their order.
    entry: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

/// Keeps the bytes of each request in its extensions, where `Once::begin` finds them: a layer
/// (`axum::middleware::from_fn(keep)`) for unary calls, which waits for the whole request.
pub async fn keep(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, BYTES_MAX).await else {
        return Status::out_of_range(format!("the request has more than {BYTES_MAX} bytes")).into_http();
    };
    // One byte that says whether the message is compressed, and four with its length.
    parts.extensions.insert(Received(bytes.slice(bytes.len().min(5)..)));
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}

impl Received {
    /// Makes it from the bytes of a message.
    pub fn new(message: impl Into<Bytes>) -> Self {
        Self(message.into())
    }

    /// Returns the fingerprint of a call. The order of fields with different numbers is not part of
    /// it, and neither is that of the entries of a map: many clients encode a map in another order
    /// each time.
    ///
    /// Types are unknown here, so a text, bytes or a packed list that could be a message are sorted
    /// as one: `8B(A` and `(A8B` have one fingerprint. A message with more than 10,000 fields, such
    /// as a map of that size, and a compressed request are compared as they were sent: if their
    /// entries come in another order, the key counts as reused.
    pub fn fingerprint(&self, method: &str) -> Fingerprint {
        let sorted = fields(&self.0, DEPTH_MAX).map(sorted);
        Fingerprint::of_parts(method, "application/grpc+proto", sorted.as_deref().unwrap_or(&self.0))
    }
}

/// Maximum number of fields of one message that are sorted: each takes some hundred bytes.
const FIELDS_MAX: usize = 10_000;

/// Returns the fields of a message; `None` if the bytes are no message, or have too many fields.
fn fields(mut rest: &[u8], depth: u32) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        if fields.len() == FIELDS_MAX {
            return None;
        }
        let whole = rest;
        let key = varint(&mut rest)?;
        let number = key >> 3;
        if number == 0 {
            return None;
        }
        let len = match key & 7 {
            0 => varint(&mut rest).map(|_| 0),
            1 => Some(8),
            2 => varint(&mut rest),
            5 => Some(4),
            _ => None,
        }?;
        let head = &whole[..whole.len() - rest.len()];
        let value = rest.split_off(..len)?;
        let inner = (key & 7 == 2 && depth > 0).then(|| self::fields(value, depth - 1)).flatten();
        // The key of a map's entry has the number 1, its value the number 2.
        let is_entry =
            inner.as_ref().is_some_and(|inner| inner.len() <= 2 && inner.iter().all(|it| it.number <= 2));
        let bytes = [head, &inner.map_or_else(|| value.to_vec(), sorted)].concat();
        fields.push(Field { number, entry: is_entry.then(|| bytes.clone()), bytes });
    }
    Some(fields)
}

fn sorted(mut fields: Vec<Field>) -> Vec<u8> {
    fields.sort_by(|a, b| a.number.cmp(&b.number).then_with(|| a.entry.cmp(&b.entry)));
    fields.into_iter().flat_map(|field| field.bytes).collect()
}

fn varint(rest: &mut &[u8]) -> Option<usize> {
    prost::decode_length_delimiter(rest).ok()
}
