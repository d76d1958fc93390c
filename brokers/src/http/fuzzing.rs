//! Parts of this adapter for the fuzz targets, as functions of plain values.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use message::Message;

use super::config::{Config, Mode};
use super::endpoints::Endpoints;
use super::fault::Statuses;
use super::{quote, wire};
use crate::fuzzing::{Answer, Read};

/// Writes a message as a request and reads it back.
pub(crate) fn again(message: &Message, mode: Mode) -> Option<Read> {
    let record = wire::encode(message, mode, None, 1 << 20).ok()?;
    Some(wire::read(message.topic.as_str(), &record.headers, record.body))
}

/// Reads an answer to a message. See [`crate::fuzzing::http_answer`].
pub(crate) fn answered(
    url: &str,
    status: &str,
    headers: &HeaderMap,
    body: &[u8],
    message: &Message,
    at: SystemTime,
) -> Option<Answer> {
    let status = StatusCode::from_bytes(status.as_bytes()).ok()?;
    let config = Config::new(url).stopping_statuses(vec![401]).accepted_statuses(vec![409]);
    let endpoints = Endpoints::new(&config);
    let endpoint = endpoints.of_topic(message.topic.as_str())?;
    let statuses = Statuses::new(&config);
    if statuses.confirms(status) {
        return Some(Answer { is_confirmed: true, error: String::new(), retry_after: None });
    }
    let said = quote::said(&Bytes::copy_from_slice(body), message, &endpoint.target);
    let failure = statuses.failure(status, headers, &said, at);
    let error = failure.to_publish_error(&message.topic, endpoint);
    let retry_after = error.retry_after();
    Some(Answer { is_confirmed: false, error: error.to_string(), retry_after })
}
