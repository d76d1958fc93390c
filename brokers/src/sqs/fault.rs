//! Classifies the SDK's errors: party at fault, scope, remedy.

use std::error::Error;
use std::io;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use message::{Fault, FaultScope, PublishError, SubscriptionError, Topic};

use super::encrypted::Unencrypted;
use crate::causes::{chain, has_cause, is_unverified};
use crate::unreachable;

/// The reason why a request, or one entry of a batch, failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    text: String,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The queue does not exist.
    Missing,
    /// The queue, its key, or the operation on it is forbidden.
    Forbidden,
    /// SQS does not accept our credentials anywhere.
    Credentials,
    /// SQS does not accept it for now.
    Busy,
    /// Too many requests: the same one is accepted a little later.
    Throttled,
    /// An error that this version does not know: nothing shows that a message is at fault.
    Unknown,
    /// No answer: unreachable, or too late. The outcome is unknown.
    Lost,
    /// Nothing listens at the address, so this is not a silent queue. The outcome is unknown,
    /// because an earlier attempt may have arrived.
    Away,
    /// SQS will never take it.
    Refused,
    /// A proxy, a gateway or a firewall refused the request.
    Intercepted,
    /// The client could not even build the request.
    Local,
    /// The server did not prove its identity.
    Unverified,
}

impl Failure {
    /// Converts the SDK's error for a whole request.
    pub(super) fn of_request<E>(error: &SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ServiceError(service) => {
                let status = service.raw().status();
                let message = service.err().message().unwrap_or_default();
                match service.err().code().filter(|code| !code.is_empty()) {
                    Some(code) => Self::of_code(code, message, status.is_client_error()),
                    None => Self::of_status(status.as_u16()),
                }
            }
            SdkError::ConstructionFailure(_) => Self { kind: Kind::Local, text: chain(error) },
            _ if is_unverified(error) => Self { kind: Kind::Unverified, text: chain(error) },
            _ if has_cause(error, &|cause| cause.is::<Unencrypted>()) => {
                Self { kind: Kind::Local, text: chain(error) }
            }
            _ if has_cause(error, &is_connection_refused) => Self { kind: Kind::Away, text: chain(error) },
            _ => Self { kind: Kind::Lost, text: chain(error) },
        }
    }

    /// Converts an error code of SQS, for a request or for one of its entries.
    pub(super) fn of_code(code: &str, message: &str, client_fault: bool) -> Self {
        Self { kind: kind(code, client_fault), text: format!("{code} {message}").trim().to_owned() }
    }

    /// Converts the status of an answer without an error code. Such an answer is not from SQS but
    /// from a proxy, a gateway or a firewall. Only "request too large" can then concern a message.
    fn of_status(status: u16) -> Self {
        let kind = match status {
            413 => Kind::Refused,
            429 => Kind::Throttled,
            408 | 425 | 500.. => Kind::Busy,
            _ => Kind::Intercepted,
        };
        Self { kind, text: format!("status {status} without an error code of sqs") }
    }

    /// Returns the failure of an entry that the answer does not mention.
    pub(super) fn unanswered() -> Self {
        Self { kind: Kind::Busy, text: String::from("the answer does not mention this message") }
    }

    /// Returns the failure of a request whose task panicked.
    pub(super) fn of_task(error: &tokio::task::JoinError) -> Self {
        Self { kind: Kind::Lost, text: format!("the request failed because of a bug: {error}") }
    }

    /// Returns the error for the message.
    pub(super) fn to_publish_error(&self, topic: &Topic, queue: &str) -> PublishError {
        let text = &self.text;
        match self.kind {
            Kind::Missing => PublishError::topic_unavailable(format!(
                "sqs has no queue {queue} for {topic}: {text}; create it, or name another one in sqs.queues"
            )),
            Kind::Forbidden => PublishError::topic_unavailable(format!(
                "sqs does not let us send to queue {queue} for {topic}: {text}; grant sqs:GetQueueUrl, \
                 sqs:SendMessage and the use of its key"
            )),
            Kind::Unknown => PublishError::topic_unavailable(format!(
                "sqs refuses requests for queue {queue} with an unknown error: {text}; check what it means for this account and queue"
            )),
            Kind::Busy | Kind::Throttled => {
                PublishError::topic_busy(format!("sqs accepts no messages for queue {queue} now: {text}"))
            }
            Kind::Intercepted => PublishError::topic_unavailable(format!(
                "a request for queue {queue} did not reach sqs: {text}; let the proxy or gateway in between pass it"
            )),
            Kind::Refused => {
                PublishError::refused(format!("sqs refused a message for queue {queue}: {text}"))
            }
            Kind::Credentials | Kind::Local | Kind::Unverified | Kind::Lost | Kind::Away => {
                self.to_session_error()
            }
        }
    }

    /// Returns the error for a message of a silent queue while SQS answers other requests.
    pub(super) fn to_silence(&self, queue: &str, scope: FaultScope) -> PublishError {
        let text = &self.text;
        let reason =
            format!("queue {queue} did not answer, but sqs answers other requests; outcome unknown: {text}");
        PublishError::new(Fault::Broker, scope, reason)
    }

    /// Returns the error for a session that could not be opened.
    pub(super) fn to_session_error(&self) -> PublishError {
        let fault = if self.is_operators() { Fault::Operator } else { Fault::Broker };
        PublishError::new(fault, FaultScope::Session, self.session_text())
    }

    /// Returns the error for a subscription.
    pub(super) fn to_subscription_error(&self, queue: &str) -> SubscriptionError {
        if self.is_operators() {
            SubscriptionError::operator(format!("queue {queue}: {}", self.session_text()))
        } else {
            SubscriptionError::lost(format!("queue {queue}: {}", self.session_text()))
        }
    }

    fn is_operators(&self) -> bool {
        !matches!(self.kind, Kind::Busy | Kind::Throttled | Kind::Lost | Kind::Away)
    }

    fn session_text(&self) -> String {
        let text = &self.text;
        match self.kind {
            Kind::Credentials => {
                format!("sqs does not accept our credentials: {text}; check key, region and clock")
            }
            Kind::Missing => format!("sqs has no such queue: {text}; create it, or correct the name"),
            Kind::Forbidden => format!("sqs does not let us use the queue: {text}; grant permission"),
            Kind::Local => {
                format!("the request to sqs cannot be made: {text}; check region and endpoint_url")
            }
            Kind::Unverified => format!(
                "could not verify the identity of the sqs server: {text}; check endpoint_url and the certificate authority in sqs.tls.ca_file"
            ),
            Kind::Refused | Kind::Unknown => format!("sqs refused the request: {text}"),
            Kind::Intercepted => {
                format!("a request did not reach sqs: {text}; let the proxy or gateway in between pass it")
            }
            Kind::Busy | Kind::Throttled => format!("sqs cannot answer now: {text}"),
            Kind::Lost | Kind::Away => {
                format!("sqs did not answer: {text}; {}", unreachable::advice(text, "sqs.endpoint_url"))
            }
        }
    }
}

/// Returns whether the connection was refused.
fn is_connection_refused(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused)
}

/// Returns the kind of an error code (SQS API reference, "Common Errors" and those of the
/// operations). Codes come with and without the prefix `AWS.SimpleQueueService.` or
/// `com.amazonaws.sqs#`. Those of the queue's key come as `KmsDisabled` or `KMS.DisabledException`.
fn kind(code: &str, client_fault: bool) -> Kind {
    // A problem with the queue's key is never a message's fault.
    if let Some(problem) = code.strip_prefix("KMS.") {
        return if problem.starts_with("Throttl") { Kind::Throttled } else { Kind::Forbidden };
    }
    match code.rsplit(['.', '#']).next().unwrap_or_default() {
        "QueueDoesNotExist" | "NonExistentQueue" | "QueueDeletedRecently" => Kind::Missing,
        "AccessDenied"
        | "AccessDeniedException"
        | "AuthorizationError"
        | "NotAuthorized"
        | "KmsAccessDenied"
        | "KmsDisabled"
        | "KmsInvalidKeyUsage"
        | "KmsInvalidState"
        | "KmsNotFound"
        | "KmsOptInRequired"
        | "InvalidAddress"
        | "UnsupportedOperation" => Kind::Forbidden,
        "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "UnrecognizedClientException"
        | "SignatureDoesNotMatch"
        | "InvalidSignatureException"
        | "IncompleteSignature"
        | "IncompleteSignatureException"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "InvalidAccessKeyId"
        | "InvalidSecurity"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "RequestExpired"
        | "OptInRequired" => Kind::Credentials,
        "RequestThrottled"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "KmsThrottled"
        | "TooManyRequestsException"
        | "RequestLimitExceeded" => Kind::Throttled,
        "OverLimit" | "ServiceUnavailable" | "InternalError" | "InternalFailure" => Kind::Busy,
        // The content of an entry: body, attributes, ids. `Incomplete` is our own.
        "InvalidMessageContents"
        | "InvalidParameterValue"
        | "InvalidParameterCombination"
        | "InvalidAttributeName"
        | "InvalidAttributeValue"
        | "MissingParameter"
        | "BatchRequestTooLong"
        | "BatchEntryIdsNotDistinct"
        | "InvalidBatchEntryId"
        | "SerializationException"
        | "ValidationError"
        | "ValidationException"
        // The content of a settlement's entry.
        | "ReceiptHandleIsInvalid"
        | "InvalidIdFormat"
        | "MessageNotInflight"
        | "Incomplete" => Kind::Refused,
        // A policy, a quota, a suspended account: every message would otherwise be blamed for it.
        _ if client_fault => Kind::Unknown,
        _ => Kind::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_fault_and_scope() {
        let topic = Topic::new("orders").unwrap();
        for (code, client_fault, fault, scope) in [
            ("AWS.SimpleQueueService.NonExistentQueue", true, Fault::Operator, FaultScope::Topic),
            ("QueueDoesNotExist", true, Fault::Operator, FaultScope::Topic),
            ("KmsDisabled", true, Fault::Operator, FaultScope::Topic),
            ("KMS.AccessDeniedException", true, Fault::Operator, FaultScope::Topic),
            ("KMS.DisabledException", true, Fault::Operator, FaultScope::Topic),
            ("KMS.InvalidKeyUsageException", true, Fault::Operator, FaultScope::Topic),
            ("KMS.InvalidStateException", true, Fault::Operator, FaultScope::Topic),
            ("KMS.NotFoundException", true, Fault::Operator, FaultScope::Topic),
            ("KMS.OptInRequired", true, Fault::Operator, FaultScope::Topic),
            ("KMS.ThrottlingException", true, Fault::Broker, FaultScope::Topic),
            ("AccessDenied", true, Fault::Operator, FaultScope::Topic),
            ("InvalidClientTokenId", true, Fault::Operator, FaultScope::Session),
            ("SignatureDoesNotMatch", true, Fault::Operator, FaultScope::Session),
            ("RequestThrottled", true, Fault::Broker, FaultScope::Topic),
            ("InternalError", false, Fault::Broker, FaultScope::Topic),
            ("SomethingNew", false, Fault::Broker, FaultScope::Topic),
            ("SomethingNew", true, Fault::Operator, FaultScope::Topic),
            ("com.amazon.coral.service#AccountSuspendedException", true, Fault::Operator, FaultScope::Topic),
            ("IncompleteSignatureException", true, Fault::Operator, FaultScope::Session),
            ("AWS.SimpleQueueService.BatchRequestTooLong", true, Fault::Message, FaultScope::Message),
            ("InvalidMessageContents", true, Fault::Message, FaultScope::Message),
            ("com.amazonaws.sqs#InvalidParameterValue", true, Fault::Message, FaultScope::Message),
        ] {
            let failure = Failure::of_code(code, "why", client_fault);
            let error = failure.to_publish_error(&topic, "orders.fifo");
            assert_eq!((error.fault(), error.scope()), (fault, scope), "{code}");
            assert!(error.to_string().contains("why"), "{error}");
        }
    }

    #[test]
    fn an_answer_without_an_error_code_blames_no_message_but_for_its_size() {
        let topic = Topic::new("orders").unwrap();
        for (status, fault, scope) in [
            (400, Fault::Operator, FaultScope::Topic),
            (403, Fault::Operator, FaultScope::Topic),
            (404, Fault::Operator, FaultScope::Topic),
            (407, Fault::Operator, FaultScope::Topic),
            (408, Fault::Broker, FaultScope::Topic),
            (413, Fault::Message, FaultScope::Message),
            (429, Fault::Broker, FaultScope::Topic),
            (502, Fault::Broker, FaultScope::Topic),
        ] {
            let error = Failure::of_status(status).to_publish_error(&topic, "orders");
            assert_eq!((error.fault(), error.scope()), (fault, scope), "{status}");
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }

    #[test]
    fn no_answer_is_unknown_and_a_missing_queue_is_the_operators() {
        let timeout =
            SdkError::<aws_sdk_sqs::operation::send_message_batch::SendMessageBatchError>::timeout_error(
                "too slow",
            );
        let failure = Failure::of_request(&timeout);
        let error = failure.to_publish_error(&Topic::new("orders").unwrap(), "orders");
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session));
        assert_eq!(failure.to_subscription_error("orders").fault(), Fault::Broker);
        let missing = Failure::of_code("QueueDoesNotExist", "", true);
        assert_eq!(missing.to_subscription_error("orders").fault(), Fault::Operator);
    }
}
