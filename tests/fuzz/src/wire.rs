//! Records of brokers.

use brokers::fuzzing::{
    Read, Record, kafka_again, kafka_read, rabbitmq_again, rabbitmq_read, sqs_again, sqs_read,
};
use message::{Malformed, Message, foreign};

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

/// Demands that a malformed record is kept unchanged.
fn evidence(malformed: &Malformed, payload: &[u8], headers_min: usize) {
    assert_eq!(malformed.payload, payload);
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
