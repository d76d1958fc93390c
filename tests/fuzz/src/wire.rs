//! Records of brokers, and answers of HTTP endpoints.

use std::time::{Duration, SystemTime};

use brokers::fuzzing::{
    Read, Record, http_again, http_answer, http_read, kafka_again, kafka_read, rabbitmq_again, rabbitmq_read,
    sqs_again, sqs_read,
};
use message::{EventType, Malformed, Message, Topic, foreign};

use crate::{bounded, record};

/// Reads a Kafka record: key, value, headers.
pub fn kafka(input: &[u8]) {
    let record = record::read(input);
    let read = kafka_read(&record);
    if let Err(malformed) = &read {
        evidence(malformed, &record.payload, record.headers.len());
    }
    check(read, kafka_again);
}

/// Reads an AMQP delivery: properties and the table of headers.
pub fn rabbitmq(input: &[u8]) {
    let record = record::read(input);
    let read = rabbitmq_read(&record);
    if let Err(malformed) = &read {
        evidence(malformed, &record.payload, 0);
    }
    check(read, rabbitmq_again);
}

/// Reads an SQS message: a body that may be a CloudEvent in JSON, and attributes.
pub fn sqs(input: &[u8]) {
    let record: Record = record::read(input);
    check(sqs_read(&record), sqs_again);
}

/// Reads an HTTP request: headers and a body that may be a CloudEvent in JSON.
pub fn http(input: &[u8]) {
    let record = record::read(input);
    let read = http_read(&record);
    if let Err(malformed) = &read {
        evidence(malformed, &record.payload, 0);
    }
    check(read.clone().map(in_lower_case), |message| http_again(message, false));
    check(read, |message| http_again(message, true));
}

/// Returns the message as HTTP carries it: with the names of its headers in lower case, except for
/// names that differ only in case.
fn in_lower_case(mut message: Message) -> Message {
    let mut headers = message::Headers::default();
    for (name, value) in message.headers.iter() {
        let same = message.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).count();
        // A name that is only a free one in its own spelling is not written as a header of HTTP.
        let is_lower = same == 1 && headers.insert(name.to_ascii_lowercase(), value).is_ok();
        assert!(is_lower || headers.insert(name, value).is_ok(), "{name}");
    }
    message.headers = headers;
    message
}

/// The longest time that an endpoint may ask for, by the default settings.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Parts of a URL and of a message that no error may show.
const SECRETS: [&str; 4] = ["s3cretpath", "s3cretquery", "s3cretpayload", "s3cretheader"];

/// Reads the answer of an HTTP endpoint: its status in the first line, the key's line, headers and
/// the body. Only success confirms, no wish to wait exceeds the bound, and no error shows a secret
/// that the endpoint repeats, whatever stands around it.
pub fn answers(input: &[u8]) {
    let record = record::read(input);
    let [path, query, payload, header] = SECRETS;
    let url = format!("https://hooks.example.com/{path}?token={query}");
    let Ok(topic) = Topic::new("orders") else { return };
    let Ok(kind) = EventType::new("placed") else { return };
    let mut sent = Message::new(topic, kind, payload);
    let _ = sent.headers.insert("x-secret", header);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let Some(answer) = http_answer(&url, &record, &sent, at) else { return };
    let status: u16 = record.topic.parse().unwrap_or_default();
    assert_eq!(answer.is_confirmed, (200..=299).contains(&status) || status == 409, "{status}");
    if answer.is_confirmed {
        return;
    }
    bounded(&answer.error);
    assert!(answer.retry_after.is_none_or(|time| time <= RETRY_AFTER_MAX), "{:?}", answer.retry_after);
    // The host of a redirect is shown, whatever its name.
    for secret in SECRETS.into_iter().filter(|_| status >= 400) {
        assert!(!answer.error.contains(secret), "{}", answer.error);
    }
    assert_eq!(http_answer(&url, &record, &sent, at), Some(answer), "the same each time");
}

/// Demands that a malformed record is kept unchanged. Of a CloudEvent in JSON, its data may take
/// the place of the whole body, beside its members.
fn evidence(malformed: &Malformed, payload: &[u8], headers_min: usize) {
    if malformed.payload != payload {
        let event: serde_json::Value =
            serde_json::from_slice(payload).expect("it is the body, or an event's data");
        if let Some(id) = event["id"].as_str() {
            assert_eq!(malformed.find("ce_id"), Some(id), "the id is kept");
        }
        if event["data"].is_object() || event["data"].is_array() {
            let data: serde_json::Value = serde_json::from_slice(&malformed.payload).expect("data in JSON");
            assert_eq!(data, event["data"], "the data is kept");
        }
    }
    assert!(malformed.headers.len() >= headers_min, "{} headers of {headers_min}", malformed.headers.len());
}

/// Demands that a ready mapping returns a message that can be published, the same each time, or a
/// reason.
fn mapped(malformed: &Malformed, again: impl Fn(&Message) -> Option<Read>) {
    let read = foreign::first([foreign::any, foreign::by_arrival]);
    match read(malformed).map(Message::from) {
        Ok(message) => {
            assert_eq!(read(malformed).map(Message::from), Ok(message.clone()));
            match again(&message) {
                Some(Ok(back)) => assert_eq!(back, message),
                Some(Err(malformed)) => panic!("not read back: {}", malformed.problem),
                None => {}
            }
        }
        Err(error) => bounded(&error.to_string()),
    }
}

fn check(read: Read, again: impl Fn(&Message) -> Option<Read>) {
    let message = match read {
        Ok(message) => message,
        Err(malformed) => {
            bounded(&malformed.problem);
            return mapped(&malformed, again);
        }
    };
    // A consumer and a relay need these first.
    assert!(message.wire_bytes() >= message.payload.len());
    assert!(message.id.generated_at().unix_timestamp() >= 0);
    match again(&message) {
        Some(Ok(back)) => assert_eq!(back, message),
        Some(Err(malformed)) => panic!("not read back: {}", malformed.problem),
        None => {}
    }
}
