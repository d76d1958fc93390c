//! Classifies librdkafka's errors by party at fault and scope. Pure.

use message::{Fault, FaultScope, PublishError};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Returns the party at fault and the scope of a code. Errors that librdkafka retries by itself (no
/// leader, not enough replicas, timeouts) never arrive here, because the producer's delivery
/// timeout is unlimited.
pub(super) fn classify(code: Code) -> (Fault, FaultScope) {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => (Fault::Message, FaultScope::Message),
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::UnknownTopicId
        | Code::InvalidTopic
        // Records carry their time of publishing: a refusal points to clocks or settings.
        | Code::InvalidTimestamp
        | Code::TopicAuthorizationFailed => (Fault::Operator, FaultScope::Topic),
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        | Code::SSL
        | Code::ClusterAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::InvalidTransactionTimeout
        | Code::InvalidConfig
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InconsistentGroupProtocol
        | Code::InvalidRequiredAcks
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::UnsupportedCompressionType => (Fault::Operator, FaultScope::Session),
        _ => (Fault::Broker, FaultScope::Session),
    }
}

/// Returns the code of an error. librdkafka's bindings do not expose the code of an admin request
/// through `rdkafka_error_code`.
pub(super) fn code(error: &KafkaError) -> Code {
    match error {
        KafkaError::AdminOp(code) => *code,
        error => error.rdkafka_error_code().unwrap_or(Code::Unknown),
    }
}

/// Returns whether a consumer reports that it cannot read records. librdkafka continues behind a
/// batch of unknown format (2.12.1, `rd_kafka_msgset_reader_peek_msg_version`), and hands over this
/// error before the records behind it. The same code reports an invalid response, such as that of a
/// proxy (`rd_kafka_broker_fail`): the client connects again, and skips nothing.
pub(super) fn is_unreadable(code: Code, reason: &str) -> bool {
    match code {
        Code::BadMessage => !reason.contains("Receive failed: "),
        Code::NotImplemented | Code::BadCompression => true,
        _ => false,
    }
}

/// The remedy for a refused password.
const LOGIN: &str = "check kafka.sasl: mechanism, username, password";
/// The remedy for a refused token. The brokers' answer does not say why they refuse it.
const TOKEN_LOGIN: &str = "check that the brokers offer this mechanism and accept the token: its issuer, audience, scope and expiry, and their clocks. They log the reason";

/// Returns the operator's remedy for a code.
fn advice(code: Code) -> &'static str {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            "raise max.message.bytes of the topic, or lower kafka.message_bytes_max to it and shorten the payload"
        }
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::UnknownTopicId => "kafka has no such topic: create it, or correct the name",
        Code::InvalidTopic => "kafka accepts 1 to 249 ASCII letters, digits and . _ -",
        Code::TopicAuthorizationFailed => "grant this user DESCRIBE and WRITE (to consume: READ) on it",
        Code::GroupAuthorizationFailed => "grant this user READ on the group",
        Code::ClusterAuthorizationFailed => "grant this user IDEMPOTENT_WRITE on the cluster",
        Code::TransactionalIdAuthorizationFailed => {
            "grant this user WRITE and DESCRIBE on the transactional ids that begin with outbox/ (a prefixed ACL)"
        }
        Code::InvalidTransactionTimeout => {
            "the cluster refuses transactions that last as long as the lease: raise transaction.max.timeout.ms, or shorten engine.lease_ttl"
        }
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled => LOGIN,
        Code::SSL => "check kafka.tls: the certificate authority, the host name, the client certificate",
        Code::InconsistentGroupProtocol => {
            "the group's other members use another assignor: give this consumer its own group"
        }
        Code::InvalidTimestamp => {
            "the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms do not accept this host's time: compare the clocks of relay and brokers, or raise the limits"
        }
        Code::InvalidRecord => "the topic refuses such records (a compacted topic needs a key)",
        _ => "see the brokers' logs",
    }
}

/// Returns the error of a single message that failed with `code`.
pub(super) fn delivery(code: Code, topic: &str) -> PublishError {
    let (fault, scope) = classify(code);
    let reason = format!("kafka refused a message for topic {topic:?}: {code}; {}", advice(code));
    PublishError::new(fault, scope, reason).with_source(KafkaError::MessageProduction(code))
}

/// Returns the error of a session: what happened, in librdkafka's own words.
pub(super) fn session(code: Code, reason: &str) -> PublishError {
    let fault = match classify(code) {
        (Fault::Operator, _) => Fault::Operator,
        _ => Fault::Broker,
    };
    PublishError::new(fault, FaultScope::Session, describe(code, reason))
        .with_source(KafkaError::Global(code))
}

/// Returns whether a login with a token failed: in librdkafka, or by a broker's answer (RFC 7628,
/// section 3.2.2).
fn is_of_token(reason: &str) -> bool {
    reason.contains("OAUTHBEARER") || reason.contains("{\"status\":")
}

/// Describes why a client could not be created: its configuration is wrong. librdkafka's error
/// repeats the value, which may be a secret, so only its description is used.
pub(super) fn creation(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, description, name, _) => {
            format!("kafka.properties.{name}: {description}")
        }
        other => format!("the kafka client cannot be created: {other}"),
    }
}

pub(super) fn describe(code: Code, reason: &str) -> String {
    match classify(code) {
        (Fault::Operator, _) => {
            let advice = match advice(code) {
                LOGIN if is_of_token(reason) => TOKEN_LOGIN,
                other => other,
            };
            format!("kafka: {reason} ({code}); {advice}")
        }
        _ => format!("kafka: {reason} ({code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_classified() {
        let message = (Fault::Message, FaultScope::Message);
        let topic = (Fault::Operator, FaultScope::Topic);
        let operator = (Fault::Operator, FaultScope::Session);
        let broker = (Fault::Broker, FaultScope::Session);
        for (code, judgement) in [
            (Code::MessageSizeTooLarge, message),
            (Code::InvalidRecord, message),
            (Code::PolicyViolation, message),
            (Code::UnknownTopicOrPartition, topic),
            (Code::UnknownTopic, topic),
            (Code::TopicAuthorizationFailed, topic),
            (Code::InvalidTopic, topic),
            (Code::InvalidTimestamp, topic),
            (Code::SaslAuthenticationFailed, operator),
            (Code::Authentication, operator),
            (Code::SSL, operator),
            (Code::ClusterAuthorizationFailed, operator),
            (Code::TransactionalIdAuthorizationFailed, operator),
            (Code::InvalidTransactionTimeout, operator),
            (Code::MessageTimedOut, broker),
            (Code::PurgeInflight, broker),
            (Code::OutOfOrderSequenceNumber, broker),
            (Code::Fatal, broker),
            (Code::GaplessGuarantee, broker),
            (Code::NotEnoughReplicas, broker),
        ] {
            assert_eq!(classify(code), judgement, "{code:?}");
        }
    }

    #[test]
    fn what_is_no_response_skips_no_record() {
        let proxy =
            "127.0.0.1:9092/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000)";
        assert!(!is_unreadable(Code::BadMessage, proxy));
        assert!(is_unreadable(Code::BadMessage, "Unsupported Message(Set) MagicByte 57 at offset 7"));
        assert!(!is_unreadable(Code::AllBrokersDown, "1/1 brokers are down"));
    }

    #[test]
    fn errors_name_the_topic_and_say_what_to_do() {
        let text = delivery(Code::UnknownTopicOrPartition, "orders").to_string();
        assert!(text.contains("\"orders\"") && text.contains("create it"), "{text}");
        let text = session(Code::Authentication, "wrong password").to_string();
        assert!(text.contains("wrong password") && text.contains("kafka.sasl"), "{text}");
        for reason in ["SASL OAUTHBEARER authentication failed", r#"SASL error: {"status":"invalid_token"}"#]
        {
            let text = session(Code::Authentication, reason).to_string();
            assert!(text.contains("issuer, audience") && !text.contains("password"), "{text}");
        }
    }

    #[test]
    fn a_wrong_property_does_not_show_its_value() {
        let mut config = rdkafka::ClientConfig::new();
        config.set("sasl.passwort", "s3cret");
        let error = config.create_native_config().err().unwrap();
        let text = creation(&error);
        assert!(text.contains("sasl.passwort") && !text.contains("s3cret"), "{text}");
    }
}
