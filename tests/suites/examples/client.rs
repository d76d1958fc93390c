//! An HTTP client that sends its input unchanged, even if no well-behaved client would send it.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tests::Failure;
use tokio::net::TcpStream;

/// Maximum body of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends one request over a separate connection.
pub(crate) async fn send(address: &str, request: Request<Body>) -> Result<Answer, Failure> {
    let (mut sender, connection) = handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    let (parts, body) = response?.into_parts();
    let body = to_bytes(Body::new(body), ANSWER_BYTES_MAX).await?;
    drop(sender);
    // A server that has answered may close while the rest of the request is still being sent.
    connection.abort();
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

impl Answer {
    /// Returns a header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns whether the response is a stored one.
    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Returns the code of a problem, or an empty string for any other response.
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = match self.header("content-type") {
            Some("application/problem+json") => serde_json::from_slice(&self.body).unwrap_or_default(),
            _ => serde_json::Value::Null,
        };
        assert!(problem.is_null() || problem["status"] == self.status.as_u16(), "{problem}");
        problem["code"].as_str().unwrap_or_default().to_owned()
    }
}
