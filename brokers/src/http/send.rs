//! Sends one message, and answers it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use message::{Message, PublishError};

use super::client::Client;
use super::config::{Config, Mode};
use super::endpoints::Endpoint;
use super::fault::{Failure, Kind, Shown, Statuses};
use super::quote;
use super::signature;
use super::stops::{Stop, Stops};
use super::streak::Streak;
use super::wire::{self, Record};
use crate::pending::Pending;

/// The sender that a request names.
const AGENT: &str = concat!("outbox-relay/", env!("CARGO_PKG_VERSION"));

/// Maximum bytes of an answer's body that are read: of a refusal for its text, and of a success so
/// that the connection can be used again. A connection with a longer body is closed.
const REFUSAL_BYTES_MAX: usize = 4 << 10;
const SUCCESS_BYTES_MAX: usize = 64 << 10;

/// Maximum time for the body of an answer. The status has already decided.
const BODY_TIME_MAX: Duration = Duration::from_secs(1);

/// A message on its way to an endpoint.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) message: Arc<Message>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) pending: Pending,
}

impl Job {
    /// Answers the message with a failure of its endpoint.
    pub(super) fn fail(self, failure: &Failure) {
        let error = failure.to_publish_error(&self.message.topic, &self.endpoint);
        self.pending.answer(Err(error));
    }
}

/// The state that the requests of a session share.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) stops: Arc<Stops>,
    pub(super) statuses: Statuses,
    pub(super) header: Option<String>,
    pub(super) mode: Mode,
    pub(super) message_bytes_max: usize,
    pub(super) time_max: Duration,
}

/// Why a message was not confirmed.
enum Unsent {
    /// A failure at the endpoint.
    Failed(Failure),
    /// The message cannot be sent at all.
    Unwritten(PublishError),
}

impl Sender {
    pub(super) fn new(config: &Config, client: Client, stops: Arc<Stops>) -> Self {
        Self {
            client,
            stops,
            statuses: Statuses::new(config),
            header: config.endpoint_header.clone(),
            mode: config.mode,
            message_bytes_max: config.message_bytes_max,
            time_max: Duration::from_millis(config.connect_timeout_ms + config.request_timeout_ms),
        }
    }

    /// Returns why nothing may be sent to an endpoint now.
    pub(super) fn stopped(&self, endpoint: &Endpoint) -> Option<Failure> {
        match self.stops.of(&endpoint.target.uri)? {
            Stop::Gone(_) => Some(Failure::gone()),
            Stop::Until(at) => {
                Some(Failure::waiting(at.saturating_duration_since(tokio::time::Instant::now())))
            }
        }
    }

    /// Sends a message and answers it. Returns what that shows about the endpoint. `streak` holds
    /// the messages on which it failed.
    pub(super) async fn send(self: Arc<Self>, job: Job, streak: Arc<Streak>) -> Shown {
        let Job { message, endpoint, pending } = job;
        match self.outcome(&message, &endpoint).await {
            Ok(response) => {
                streak.outcomes().answered();
                pending.answer(Ok(()));
                // So that the connection can be used again.
                let _ = beginning(response.into_body(), SUCCESS_BYTES_MAX).await;
                Shown::Answered
            }
            Err(Unsent::Unwritten(error)) => {
                pending.answer(Err(error));
                Shown::Nothing
            }
            Err(Unsent::Failed(failure)) => {
                let mut outcomes = streak.outcomes();
                let messages = match failure.kind {
                    Kind::Failed => outcomes.failed(message.id),
                    Kind::Refused => {
                        outcomes.answered();
                        None
                    }
                    _ => None,
                };
                let failure = match messages {
                    Some(messages) => failure.on_many(messages),
                    None => failure,
                };
                self.note(&endpoint, &failure);
                let error = failure.to_publish_error(&message.topic, &endpoint);
                let is_suspect = failure.may_be_of_the_message();
                pending.answer(Err(if is_suspect { error.about_this_message() } else { error }));
                drop(outcomes);
                if failure.kind.is_endpoints() { Shown::Failed(failure) } else { Shown::Answered }
            }
        }
    }

    fn note(&self, endpoint: &Endpoint, failure: &Failure) {
        let Some(uri) = Some(&endpoint.target.uri).filter(|_| failure.kind.is_endpoints()) else { return };
        // A message that names its endpoint becomes a dead letter, which the relay reports.
        if failure.kind == Kind::Gone && self.stops.gone(uri, endpoint.is_named) && !endpoint.is_named {
            tracing::error!(endpoint = endpoint.target.name, "{}", failure.reason(&endpoint.target.name));
        }
        if let Some(time) = failure.retry_after {
            self.stops.wait(uri, time);
        }
    }

    /// Sends a message once. Returns an answer that confirms it.
    async fn outcome(&self, message: &Message, endpoint: &Endpoint) -> Result<Response<Incoming>, Unsent> {
        let record = wire::encode(message, self.mode, self.header.as_deref(), self.message_bytes_max)
            .map_err(Unsent::Unwritten)?;
        let request = self.request(record, endpoint)?;
        let asked = tokio::time::timeout(self.time_max, self.client.request(request)).await;
        let response = asked
            .map_err(|_| Unsent::Failed(Failure::of_silence(self.time_max)))?
            .map_err(|error| Unsent::Failed(Failure::of_error(&error, error.is_connect())))?;
        if self.statuses.confirms(response.status()) {
            Ok(response)
        } else {
            Err(Unsent::Failed(self.refusal(response, message, endpoint).await))
        }
    }

    fn request(&self, record: Record, endpoint: &Endpoint) -> Result<Request<Full<Bytes>>, Unsent> {
        let unwritten = |error: http::Error| {
            let refused = PublishError::refused("the message cannot be written as a request");
            Unsent::Unwritten(refused.with_source(error).without_retry())
        };
        let Record { id, headers, body } = record;
        let mut request =
            Request::post(endpoint.target.uri.clone()).body(Full::new(body.clone())).map_err(unwritten)?;
        *request.headers_mut() = headers;
        // Also of an empty body: RFC 9110, 8.6. Without it some servers answer 411.
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(secrets) = &endpoint.secrets {
            let keys = secrets.keys().map_err(|error| Unsent::Failed(Failure::unsigned(&error)))?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let at = now.as_secs().to_string();
            let signatures = signature::sign(&keys, &id, &at, &body);
            for (name, value) in
                [(signature::ID, id), (signature::TIMESTAMP, at), (signature::SIGNATURE, signatures)]
            {
                let value = HeaderValue::try_from(value).map_err(|error| unwritten(error.into()))?;
                request.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
        Ok(request)
    }

    /// Reads an answer that does not confirm.
    async fn refusal(&self, response: Response<Incoming>, message: &Message, endpoint: &Endpoint) -> Failure {
        let (head, body) = response.into_parts();
        let body = if self.statuses.kind(head.status) == Kind::Redirected {
            Vec::new()
        } else {
            beginning(body, REFUSAL_BYTES_MAX).await
        };
        let said = quote::said(&body, message, &endpoint.target);
        self.statuses.failure(head.status, &head.headers, &said, SystemTime::now())
    }
}

/// Reads the beginning of a body. Leaves out what does not arrive in time.
async fn beginning(mut body: Incoming, bytes_max: usize) -> Vec<u8> {
    let mut read = Vec::new();
    let reading = async {
        while read.len() < bytes_max
            && let Some(Ok(frame)) = body.frame().await
        {
            if let Some(data) = frame.data_ref() {
                let room = bytes_max - read.len();
                read.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
            }
        }
    };
    let _ = tokio::time::timeout(BODY_TIME_MAX, reading).await;
    read
}
