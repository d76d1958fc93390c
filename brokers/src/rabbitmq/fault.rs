//! Classifies the client's errors: party at fault, scope, remedy.

use std::io;
use std::time::Duration;

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use message::{Fault, FaultScope, PublishError, SubscriptionError, Topic};

use crate::unreachable;

/// Returns whether the broker closed a channel because of one message on it. The connection and its
/// other messages are fine, and the message can be found by sending smaller groups.
pub(super) fn has_culprit(error: &Error) -> bool {
    error.is_amqp_soft_error()
}

/// Returns whether the broker closed a channel because permission is missing.
pub(super) fn is_refused_access(error: &Error) -> bool {
    let ErrorKind::ProtocolError(protocol) = error.kind() else { return false };
    *protocol.kind() == AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
}

/// Returns whether the broker closed a channel because a request contradicts what exists.
pub(super) fn is_precondition(error: &Error) -> bool {
    let ErrorKind::ProtocolError(protocol) = error.kind() else { return false };
    *protocol.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)
}

/// Returns the error for a message that alone made the broker close the channel.
pub(super) fn of_culprit(error: Error, topic: &Topic, exchange: &str) -> PublishError {
    let ErrorKind::ProtocolError(protocol) = error.kind() else {
        return of_session(error);
    };
    let reply = protocol.get_message();
    let fault = match protocol.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE) => {
            PublishError::refused(format!("rabbitmq refused a message for {topic}: {reply}"))
        }
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => PublishError::topic_unavailable(format!(
            "rabbitmq has no exchange {exchange:?} for {topic}: {reply}; declare it, or correct the setting exchange"
        )),
        AMQPErrorKind::Soft(_) if reply.as_str().contains("internal exchange") => {
            PublishError::topic_unavailable(format!(
                "rabbitmq lets no client publish {topic} on exchange {exchange:?}: {reply}; name an exchange that is not \
                 internal in the setting exchange"
            ))
        }
        AMQPErrorKind::Soft(_) => PublishError::topic_unavailable(format!(
            "rabbitmq does not let this user publish {topic} on exchange {exchange:?}: {reply}; grant write \
             permission"
        )),
        AMQPErrorKind::Hard(_) => return of_session(error),
    };
    fault.with_source(error)
}

/// Returns the error of a message that no queue took. The broker acknowledges it, so it would be
/// lost without this error.
pub(super) fn unroutable(topic: &Topic, exchange: &str) -> PublishError {
    PublishError::topic_unavailable(no_queue(topic, exchange))
}

/// Returns the error of a message that no queue took and that must not wait for one.
pub(super) fn unroutable_for_good(topic: &Topic, exchange: &str) -> PublishError {
    PublishError::refused(no_queue(topic, exchange)).without_retry()
}

fn no_queue(topic: &Topic, exchange: &str) -> String {
    format!("no queue is bound for routing key {topic} on exchange {exchange:?}; declare one and bind it")
}

/// Returns the error of a message that its queue rejects for now (`basic.nack`).
pub(super) fn nacked(topic: &Topic) -> PublishError {
    PublishError::topic_busy(format!(
        "a queue for {topic} rejected the message: it is full (overflow=reject-publish), or it has no leader"
    ))
}

/// Returns the error of a message whose queue confirmed nothing in time, while others did. Its
/// outcome is unknown.
pub(super) fn unanswered(topic: &Topic, timeout: Duration) -> PublishError {
    let millis = timeout.as_millis();
    PublishError::topic_busy(format!(
        "no queue for {topic} confirmed a message within {millis} ms, but other queues did; has it lost its majority?"
    ))
}

/// Returns the error of a connection, or of an attempt to open one.
pub(super) fn of_session(error: Error) -> PublishError {
    let (fault, reason) = classify(&error);
    PublishError::new(fault, FaultScope::Session, reason).with_source(error)
}

/// Returns the error of a subscription's connection, channel or consumer.
pub(super) fn of_subscription(error: Error) -> SubscriptionError {
    let (fault, reason) = match error.kind() {
        ErrorKind::ParsingError(_) => unreadable(&error),
        _ => classify(&error),
    };
    match fault {
        Fault::Operator => SubscriptionError::operator(reason),
        _ => SubscriptionError::lost(reason),
    }
    .with_source(error)
}

/// Returns the party at fault, and the remedy, for data that the client library could not parse. It
/// requires UTF-8 in short strings, unlike RabbitMQ. Such a message is redelivered in every
/// session, so only an operator can end this.
fn unreadable(error: &Error) -> (Fault, String) {
    let reason = format!(
        "the client library cannot read what rabbitmq sent ({error}). A message in one of these queues \
         probably has a routing key, header name or short property (message_id, type, content_type, …) that \
         is not UTF-8: remove it with the management API or another client; until then every session ends \
         there. If there is none, check that the port speaks AMQP 0-9-1"
    );
    (Fault::Operator, reason)
}

/// Returns the party at fault for a failed session, and the reason with its remedy.
fn classify(error: &Error) -> (Fault, String) {
    match error.kind() {
        ErrorKind::ProtocolError(protocol) => {
            let (fault, advice) = classify_protocol(protocol.kind());
            (fault, format!("rabbitmq closed the session: {}; {advice}", protocol.get_message()))
        }
        ErrorKind::InvalidProtocolVersion(version) => (
            Fault::Operator,
            format!("the server speaks AMQP {version}, not 0-9-1: enable its plugin or port"),
        ),
        ErrorKind::ChannelsLimitReached => {
            (Fault::Operator, String::from("rabbitmq's channel_max is reached: raise it"))
        }
        ErrorKind::AuthProviderError(problem) => {
            (Fault::Operator, format!("rabbitmq does not offer the configured login: {problem}"))
        }
        ErrorKind::IOError(io) if io.to_string().contains("InvalidContentType") => (
            Fault::Operator,
            format!(
                "the port does not speak TLS ({io}); write the TLS port of rabbitmq into rabbitmq.url (usually 5671), \
                 or amqp:// for a port without TLS"
            ),
        ),
        // Errors of rustls: an untrusted or expired certificate, another name, no common version.
        ErrorKind::IOError(io) if io.kind() == io::ErrorKind::InvalidData => (
            Fault::Operator,
            format!("TLS with rabbitmq failed: {io}; check ca_file, host name and certificates"),
        ),
        ErrorKind::IOError(io) if is_hung_up(io.kind()) => (
            Fault::Broker,
            format!(
                "rabbitmq ended the connection: {io}; if this happens every time, check whether the port in \
                 rabbitmq.url expects TLS (then write amqps://) or belongs to another program, and whether the \
                 broker's log says that its frame_max is below 8,192 bytes (then raise it)"
            ),
        ),
        ErrorKind::IOError(io) => {
            let advice = unreachable::advice(&io.to_string(), "rabbitmq.url");
            (Fault::Broker, format!("no connection to rabbitmq: {io}; {advice}"))
        }
        ErrorKind::MissingHeartbeatError => {
            (Fault::Broker, String::from("rabbitmq sent no heartbeat in time"))
        }
        _ => (Fault::Broker, format!("the session with rabbitmq ended: {error}")),
    }
}

/// Returns whether the server closed the connection. One that expects TLS does so with a client
/// that begins without.
fn is_hung_up(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn classify_protocol(kind: &AMQPErrorKind) -> (Fault, &'static str) {
    match kind {
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
            (Fault::Operator, "check user name, password and permissions")
        }
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => (Fault::Operator, "declare it, or correct the name"),
        AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => {
            (Fault::Operator, "another connection holds it exclusively")
        }
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED | AMQPHardError::INVALIDPATH) => {
            (Fault::Operator, "check the virtual host, its permissions and its limits")
        }
        AMQPErrorKind::Hard(AMQPHardError::NOTIMPLEMENTED) => {
            (Fault::Operator, "the server or this type of queue lacks a feature that is needed")
        }
        _ => (Fault::Broker, "connecting again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::AMQPError;
    use lapin::types::ShortString;

    fn closed(code: u16) -> Error {
        let text = ShortString::try_new("reply of the broker").unwrap();
        ErrorKind::ProtocolError(AMQPError::from_id(code, text).unwrap()).into()
    }

    fn io(kind: io::ErrorKind) -> Error {
        io::Error::new(kind, "x").into()
    }

    #[test]
    fn a_culprit_is_refused_or_its_topic_stops() {
        let topic = Topic::new("orders").unwrap();
        for (code, fault, scope) in [
            (311, Fault::Message, FaultScope::Message),
            (406, Fault::Message, FaultScope::Message),
            (404, Fault::Operator, FaultScope::Topic),
            (403, Fault::Operator, FaultScope::Topic),
            (541, Fault::Broker, FaultScope::Session),
        ] {
            let error = of_culprit(closed(code), &topic, "events");
            assert_eq!((error.fault(), error.scope()), (fault, scope), "{code}");
            assert!(error.to_string().contains("reply of the broker"), "{error}");
        }
    }

    #[test]
    fn only_a_closed_channel_has_a_culprit() {
        assert!(has_culprit(&closed(404)) && has_culprit(&closed(406)));
        assert!(!has_culprit(&closed(320)) && !has_culprit(&io(io::ErrorKind::BrokenPipe)));
    }

    #[test]
    fn a_session_fails_by_the_operator_or_by_the_broker() {
        for (error, fault) in [
            (closed(403), Fault::Operator),
            (closed(404), Fault::Operator),
            (closed(530), Fault::Operator),
            (closed(320), Fault::Broker),
            (closed(541), Fault::Broker),
            (io(io::ErrorKind::ConnectionRefused), Fault::Broker),
            (io(io::ErrorKind::InvalidData), Fault::Operator),
            (ErrorKind::MissingHeartbeatError.into(), Fault::Broker),
        ] {
            assert_eq!(of_subscription(error.clone()).fault(), fault, "{error}");
            let published = of_session(error);
            assert_eq!((published.fault(), published.scope()), (fault, FaultScope::Session));
        }
    }

    #[test]
    fn a_port_of_another_protocol_is_told() {
        let hung_up = io(io::ErrorKind::ConnectionReset);
        let no_tls = "received corrupt message of type InvalidContentType";
        let no_tls = io::Error::new(io::ErrorKind::InvalidData, no_tls).into();
        for (error, part) in
            [(hung_up, "amqps://"), (no_tls, "5671"), (io(io::ErrorKind::InvalidData), "ca_file")]
        {
            let text = of_session(error).to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_internal_exchange_is_no_matter_of_permissions() {
        let text = "ACCESS_REFUSED - cannot publish to internal exchange 'int' in vhost '/'";
        let refused = AMQPError::from_id(403, ShortString::try_new(text).unwrap()).unwrap();
        let topic = Topic::new("orders").unwrap();
        let text = of_culprit(ErrorKind::ProtocolError(refused).into(), &topic, "int").to_string();
        assert!(text.contains("not internal") && !text.contains("grant"), "{text}");
    }

    #[test]
    fn unroutable_and_full_name_the_topic() {
        let topic = Topic::new("orders").unwrap();
        let dead = unroutable_for_good(&topic, "events");
        assert_eq!(
            (dead.fault(), dead.scope(), dead.is_final()),
            (Fault::Message, FaultScope::Message, true)
        );
        let lost = unroutable(&topic, "events");
        assert_eq!((lost.fault(), lost.scope()), (Fault::Operator, FaultScope::Topic));
        assert!(lost.to_string().contains("routing key orders on exchange \"events\""), "{lost}");
        assert_eq!((nacked(&topic).fault(), nacked(&topic).scope()), (Fault::Broker, FaultScope::Topic));
    }
}
