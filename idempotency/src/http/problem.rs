//! Answers in place of the handler's: problem details (RFC 9457).
//!
//! | status | `code` | when | what the client does |
//! |---|---|---|---|
//! | 400 | `idempotency_key_missing` | the route requires a key | generates a key for each new request |
//! | 400 | `idempotency_key_malformed` | the header cannot be read | corrects it |
//! | 400 | `request_body_unreadable` | the body ended early | sends the request again, with the same key |
//! | 403 | `idempotency_key_of_nobody` | no tenant or account is known | authenticates |
//! | 408 | `request_body_too_slow` | the body did not arrive in time | sends the request again, with the same key |
//! | 409 | `idempotency_key_in_flight` | a request with the key is running | waits for `Retry-After`, then sends it again |
//! | 409 | `idempotency_key_stuck` | its outcome is unknown, and an operator must decide | waits for `Retry-After`, then sends it again |
//! | 409 | `idempotency_key_discarded` | an operator has discarded it | gives up too, or makes a new key |
//! | 413 | `request_body_too_large` | the body exceeds the route's limit | sends less |
//! | 422 | `idempotency_key_reused` | the key was used for another request | makes a key for each new request |
//! | 500 | `response_not_storable` | the handler's response is a stream or too large | – (a bug of the service) |
//! | 500 | `idempotency_failed` | the service or its set-up is wrong | – |
//! | 503 | `idempotency_unavailable` | the database is unavailable; the request may or may not have run | waits for `Retry-After`, then sends it again, with the same key |

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

/// The `type` of every problem; `code` distinguishes them.
pub(crate) const TYPE: &str =
    "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07";

/// An answer in place of the handler's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The status.
    pub(crate) status: StatusCode,
    /// The machine-readable word.
    pub(crate) code: &'static str,
    /// The summary for people, the same for every occurrence.
    pub(crate) title: &'static str,
    /// The problem with this request, and what to do.
    pub(crate) detail: String,
    /// When to ask again.
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self { status, code, title, detail: detail.into(), retry_after: None }
    }

    pub(super) fn after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Returns a response with `application/problem+json`.
    #[must_use]
    pub(crate) fn response<B: From<Bytes>>(&self) -> Response<B> {
        let body = serde_json::json!({
            "type": TYPE,
            "title": self.title,
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let mut response = Response::new(B::from(Bytes::from(body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up: a client that retries too early only gets the same answer.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_with_its_status_and_time() {
        let problem = Problem::new(StatusCode::CONFLICT, "in_flight", "It runs.", "say \"again\"");
        let response: Response<Bytes> = problem.after(Duration::from_millis(1_200)).response();
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((&body["status"], &body["detail"]), (&409.into(), &"say \"again\"".into()));
    }
}
