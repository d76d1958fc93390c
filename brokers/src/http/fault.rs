//! Classifies answers and errors of requests: party at fault, scope, remedy.

use std::error::Error;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{HeaderMap, LOCATION, RETRY_AFTER};
use message::{Fault, FaultScope, PublishError, Topic};

use super::config::Config;
use super::endpoints::Endpoint;
use crate::causes::{chain, has_cause, is_unverified};
use crate::settings::InvalidSetting;

/// Maximum bytes of the origin of a redirect that an error shows: scheme, the longest name of DNS,
/// and port. An endpoint can name one of any length.
const ORIGIN_BYTES_MAX: usize = 300;

/// A host that resolves to an address to which no request may go. The operator's fault.
#[derive(Debug, thiserror::Error)]
#[error("{host} resolves to {addresses}, which is not a public address")]
pub(super) struct Blocked {
    pub(super) host: String,
    pub(super) addresses: String,
}

/// The reason why a request failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    text: String,
    /// How long the endpoint asked to wait, within the bound of the settings.
    pub(super) retry_after: Option<Duration>,
}

/// The evidence that the end of a request gives about its endpoint.
#[derive(Debug)]
pub(super) enum Shown {
    /// It has answered about the message.
    Answered,
    /// It has failed.
    Failed(Failure),
    /// None: the message could not be sent at all.
    Nothing,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The endpoint does not accept it for now.
    Busy,
    /// Enough messages wait for the endpoint already.
    Saturated,
    /// No connection: nothing was sent.
    Away,
    /// The request was sent, at least in part, and there is no answer. The outcome is unknown.
    Lost,
    /// The server did not prove its identity.
    Unverified,
    /// No request may go to the address.
    Blocked,
    /// The endpoint is elsewhere.
    Redirected,
    /// The endpoint no longer exists.
    Gone,
    /// The endpoint refuses every message.
    Closed,
    /// The secrets that requests are signed with cannot be read.
    Unsigned,
    /// The endpoint failed, most often because of this message. The outcome is unknown.
    Failed,
    /// The endpoint fails on one message after the other. The outcome is unknown.
    Failing,
    /// The endpoint refuses this message.
    Refused,
}

impl Kind {
    /// Returns whether the next message would fail in the same way.
    pub(super) fn is_endpoints(self) -> bool {
        !matches!(self, Self::Refused | Self::Failed)
    }
}

impl Failure {
    /// Returns whether the message itself may have caused the failure: the endpoint took the
    /// request and did not answer, or answered that it is not available. An answer that asks to
    /// wait concerns all messages.
    pub(super) fn may_be_of_the_message(&self) -> bool {
        matches!(self.kind, Kind::Busy | Kind::Lost | Kind::Failing) && self.retry_after.is_none()
    }
}

/// How statuses are read.
#[derive(Debug, Clone)]
pub(super) struct Statuses {
    pub(super) accepted: Vec<u16>,
    pub(super) stopping: Vec<u16>,
    pub(super) retry_after_max: Duration,
}

impl Statuses {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            accepted: config.accepted_statuses.clone(),
            stopping: config.stopping_statuses.clone(),
            retry_after_max: Duration::from_secs(config.retry_after_max_secs),
        }
    }

    /// Returns whether a status confirms the message.
    pub(super) fn confirms(&self, status: StatusCode) -> bool {
        status.is_success() || self.accepted.contains(&status.as_u16())
    }

    /// Returns the kind of failure for a status that does not confirm the message.
    pub(super) fn kind(&self, status: StatusCode) -> Kind {
        match status.as_u16() {
            status if self.stopping.contains(&status) => Kind::Closed,
            // No answer about the message. Of 1xx only 101 arrives: after others, one more comes.
            100..=199 | 408 => Kind::Lost,
            410 => Kind::Gone,
            425 | 429 | 502..=504 => Kind::Busy,
            // An exception of a handler becomes a 500.
            500.. => Kind::Failed,
            400..=499 => Kind::Refused,
            // 3xx: the message has not arrived where it belongs.
            _ => Kind::Redirected,
        }
    }

    /// Returns the failure for an answer that does not confirm the message. `said` is the text
    /// about its body.
    pub(super) fn failure(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        said: &str,
        now: SystemTime,
    ) -> Failure {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let kind = self.kind(status);
        if kind == Kind::Redirected {
            return Failure::of_redirect(status, header(LOCATION));
        }
        let retry_after = header(RETRY_AFTER).filter(|_| kind == Kind::Busy);
        let retry_after = retry_after.and_then(|value| self.retry_after(value, now));
        Failure::of_answer(kind, status, said, retry_after)
    }

    /// Reads the value of `Retry-After`: seconds, or a date. Longer waits are cut to the bound.
    pub(super) fn retry_after(&self, value: &str, now: SystemTime) -> Option<Duration> {
        let value = value.trim();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // The standard has no fractions, but some servers send them. They are rounded up.
        let whole = match value.split_once('.') {
            Some((whole, fraction)) if is_number(fraction) => whole,
            _ => value,
        };
        let wait = if is_number(whole) {
            let more = u64::from(whole.len() < value.len());
            // A number with too many digits is beyond the bound as well.
            let seconds = whole.parse().map(|seconds: u64| seconds.saturating_add(more));
            seconds.map_or(self.retry_after_max, Duration::from_secs)
        } else {
            httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
        };
        Some(wait.min(self.retry_after_max))
    }
}

impl Failure {
    /// Returns the failure of an answer. `said` is the text about its body.
    pub(super) fn of_answer(
        kind: Kind,
        status: StatusCode,
        said: &str,
        retry_after: Option<Duration>,
    ) -> Self {
        Self { kind, text: format!("status {}{said}", status.as_u16()), retry_after }
    }

    /// Returns the failure of a redirect. Shows its target without path and query.
    pub(super) fn of_redirect(status: StatusCode, location: Option<&str>) -> Self {
        let url = location.and_then(|location| url::Url::parse(location).ok());
        // Without a host, there is nothing to show.
        let origin = url.map(|url| url.origin()).filter(url::Origin::is_tuple);
        let name = origin.map(|origin| origin.ascii_serialization());
        let name = name.filter(|name| name.len() <= ORIGIN_BYTES_MAX);
        let to = name.map(|name| format!(" to {name}")).unwrap_or_default();
        Self { kind: Kind::Redirected, text: format!("status {}{to}", status.as_u16()), retry_after: None }
    }

    /// Returns the failure of a request without an answer. `is_connect`: no connection was made, so
    /// nothing was sent.
    pub(super) fn of_error(error: &(dyn Error + 'static), is_connect: bool) -> Self {
        let kind = if has_cause(error, &|cause| cause.is::<Blocked>()) {
            Kind::Blocked
        } else if !is_connect {
            Kind::Lost
        } else if is_unverified(error) {
            Kind::Unverified
        } else {
            Kind::Away
        };
        Self { kind, text: chain(error), retry_after: None }
    }

    /// Returns the failure of a request that was not answered in time.
    pub(super) fn of_silence(time: Duration) -> Self {
        let text = format!("no answer within {} ms", time.as_millis());
        Self { kind: Kind::Lost, text, retry_after: None }
    }

    /// Returns the failure of an endpoint that answered earlier that it is gone.
    pub(super) fn gone() -> Self {
        Self { kind: Kind::Gone, text: String::from("it answered with status 410"), retry_after: None }
    }

    /// Returns the failure of an endpoint that asked to wait for longer.
    pub(super) fn waiting(left: Duration) -> Self {
        let text = format!("it asked to wait, {} s from now", left.as_secs().max(1));
        Self { kind: Kind::Busy, text, retry_after: Some(left) }
    }

    /// Returns the failure of an endpoint that has failed in the same way on this many messages in
    /// succession.
    pub(super) fn on_many(self, messages: usize) -> Self {
        let text = format!("on {messages} messages in succession, the last time with {}", self.text);
        Self { kind: Kind::Failing, text, ..self }
    }

    /// Returns the failure of an endpoint that failed, while another message tries it.
    pub(super) fn tried() -> Self {
        // Nothing of the message was sent, and any number of them may come: like a destination
        // without room, the endpoint is reported once, and not each message.
        let text = String::from("it failed before, and another message tries whether it is back");
        Self { kind: Kind::Saturated, text, retry_after: None }
    }

    /// Returns the failure of an endpoint that takes messages more slowly than they come.
    pub(super) fn behind() -> Self {
        // Always the same text: each different error of an entry is kept.
        let text =
            String::from("messages come faster than it takes them, and enough of them wait for it already");
        Self { kind: Kind::Saturated, text, retry_after: None }
    }

    /// Returns the failure of secrets that cannot be read.
    pub(super) fn unsigned(error: &InvalidSetting) -> Self {
        Self { kind: Kind::Unsigned, text: error.to_string(), retry_after: None }
    }

    /// Returns the error for a message.
    pub(super) fn to_publish_error(&self, topic: &Topic, endpoint: &Endpoint) -> PublishError {
        if self.kind == Kind::Refused {
            let name = &endpoint.target.name;
            return PublishError::refused(format!(
                "the endpoint {name} of topic {topic} refused the message with {}; correct the message or the receiver",
                self.text
            ));
        }
        if self.kind == Kind::Gone && endpoint.is_named {
            // Only the message can name another one, so it would wait for ever.
            return PublishError::refused(format!(
                "the endpoint {}, which the message for topic {topic} names, is gone: {}; edit the URL in the \
                 message, or requeue the message some minutes after the receiver is back",
                endpoint.target.name, self.text
            ))
            .without_retry();
        }
        let scope = if self.kind.is_endpoints() { endpoint.scope } else { FaultScope::Message };
        let reason = self.reason(&format!("{} of topic {topic}", endpoint.target.name));
        let error = PublishError::new(self.fault(), scope, reason);
        let error = if self.kind == Kind::Saturated { error.saturated() } else { error };
        match self.retry_after {
            Some(time) => error.not_before(time),
            None => error,
        }
    }

    /// Returns the party at fault.
    pub(super) fn fault(&self) -> Fault {
        match self.kind {
            Kind::Refused => Fault::Message,
            Kind::Busy | Kind::Saturated | Kind::Away | Kind::Lost | Kind::Failed | Kind::Failing => {
                Fault::Broker
            }
            Kind::Unverified
            | Kind::Blocked
            | Kind::Redirected
            | Kind::Gone
            | Kind::Closed
            | Kind::Unsigned => Fault::Operator,
        }
    }

    /// Returns what happened at an endpoint, and the remedy.
    pub(super) fn reason(&self, endpoint: &str) -> String {
        let text = &self.text;
        match self.kind {
            Kind::Busy => format!("the endpoint {endpoint} accepts no messages now: {text}"),
            Kind::Saturated => format!("the endpoint {endpoint} has enough messages for now: {text}"),
            Kind::Away => format!(
                "the endpoint {endpoint} cannot be reached: {text}; check the receiver, its URL, and the network in between"
            ),
            Kind::Lost => format!(
                "the endpoint {endpoint} gave no clear answer, so the outcome is unknown: {text}; the message is sent \
                 again under the same id"
            ),
            Kind::Unverified => format!(
                "could not verify the identity of the endpoint {endpoint}: {text}; check its URL and the certificate authority in http.tls.ca_file"
            ),
            Kind::Blocked => format!(
                "no request may go to the endpoint {endpoint}: {text}; correct its URL, or add the network to http.private_networks"
            ),
            Kind::Redirected => format!(
                "the endpoint {endpoint} confirms nothing: {text}; redirects are not followed, so use the final URL"
            ),
            Kind::Gone => format!(
                "the endpoint {endpoint} is gone: {text}; correct its URL, or restart the relay to try it again"
            ),
            Kind::Closed => format!(
                "the endpoint {endpoint} refuses all messages: {text}; repair its URL, its permissions or its receiver"
            ),
            Kind::Unsigned => format!("requests to the endpoint {endpoint} cannot be signed: {text}"),
            Kind::Failed => format!(
                "the endpoint {endpoint} failed on the message: {text}; repair the receiver, or let it answer this message \
                 with another status"
            ),
            Kind::Failing => {
                format!(
                    "the endpoint {endpoint} fails {text}; repair the receiver, or let it answer 503 until then"
                )
            }
            Kind::Refused => format!("the endpoint {endpoint} refused the message: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::http::endpoints::Endpoints;

    fn statuses() -> Statuses {
        let config = Config::new("https://a.example/s3cret?token=s3cret");
        Statuses::new(&Config { accepted_statuses: vec![409], stopping_statuses: vec![401], ..config })
    }

    fn error(failure: &Failure) -> PublishError {
        let endpoints = Endpoints::new(&Config::new("https://a.example/s3cret?token=s3cret"));
        let error =
            failure.to_publish_error(&Topic::new("orders").unwrap(), endpoints.of_topic("orders").unwrap());
        let text = error.to_string();
        assert!(text.contains("https://a.example of topic orders") && !text.contains("s3cret"), "{text}");
        error
    }

    #[test]
    fn every_status_has_its_fault_and_scope() {
        use Fault::{Broker, Message, Operator};
        for (status, fault, scope) in [
            (101, Broker, FaultScope::Topic),
            (300, Operator, FaultScope::Topic),
            (301, Operator, FaultScope::Topic),
            (307, Operator, FaultScope::Topic),
            (400, Message, FaultScope::Message),
            (401, Operator, FaultScope::Topic),
            (404, Message, FaultScope::Message),
            (408, Broker, FaultScope::Topic),
            (410, Operator, FaultScope::Topic),
            (413, Message, FaultScope::Message),
            (422, Message, FaultScope::Message),
            (425, Broker, FaultScope::Topic),
            (429, Broker, FaultScope::Topic),
            (500, Broker, FaultScope::Message),
            (501, Broker, FaultScope::Message),
            (502, Broker, FaultScope::Topic),
            (503, Broker, FaultScope::Topic),
            (504, Broker, FaultScope::Topic),
            (505, Broker, FaultScope::Message),
            (599, Broker, FaultScope::Message),
            (999, Broker, FaultScope::Message),
        ] {
            let code = StatusCode::from_u16(status).unwrap();
            assert!(!statuses().confirms(code), "{status}");
            let error = error(&Failure::of_answer(statuses().kind(code), code, ": \"why\"", None));
            assert_eq!((error.fault(), error.scope()), (fault, scope), "{status}");
            assert!(error.to_string().contains(&format!("status {status}: \"why\"")), "{error}");
        }
        for status in [200, 201, 202, 204, 299, 409] {
            assert!(statuses().confirms(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }

    #[test]
    fn no_answer_is_unknown_and_no_connection_is_not() {
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(Failure::of_error(&broken, false).kind, Kind::Lost);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let away = Failure::of_error(&refused, true);
        assert_eq!((away.kind, away.fault()), (Kind::Away, Fault::Broker));
        assert!(error(&away).to_string().contains("cannot be reached"));
        let tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(Failure::of_error(&tls, true).kind, Kind::Unverified);
        let blocked = Blocked { host: String::from("a.example"), addresses: String::from("127.0.0.1") };
        let blocked = Failure::of_error(&io::Error::other(blocked), true);
        assert_eq!((blocked.kind, blocked.fault()), (Kind::Blocked, Fault::Operator));
        let silence = error(&Failure::of_silence(Duration::from_secs(10)));
        assert_eq!((silence.fault(), silence.scope()), (Fault::Broker, FaultScope::Topic));
        assert!(silence.to_string().contains("unknown: no answer within 10000 ms"), "{silence}");
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date_and_bounded() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT").unwrap();
        for (value, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("301", Some(300)),
            ("315360000", Some(300)),
            ("1.5", Some(2)),
            ("0.25", Some(1)),
            ("18446744073709551615.5", Some(300)),
            ("99999999999999999999999", Some(300)),
            ("Wed, 21 Oct 2015 07:29:00 GMT", Some(60)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(300)),
            ("", None),
            ("-1", None),
            ("-0.5", None),
            ("1.", None),
            (".5", None),
            ("1.5.2", None),
            ("+5", None),
            ("1e9", None),
            ("soon", None),
        ] {
            assert_eq!(statuses().retry_after(value, now), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn a_redirect_names_its_host_only() {
        let to = "https://b.example/s3cret?token=s3cret";
        let text = error(&Failure::of_redirect(StatusCode::FOUND, Some(to))).to_string();
        assert!(text.contains("status 302 to https://b.example;"), "{text}");
        let long = format!("https://{}.example/", "a".repeat(1_000));
        for to in ["/s3cret", "", "data:s3cret", "file:///s3cret", &long] {
            let text = error(&Failure::of_redirect(StatusCode::FOUND, Some(to))).to_string();
            assert!(text.contains("status 302;"), "{to}: {text}");
        }
    }
}
