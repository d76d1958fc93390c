//! Every field of `docs/wire.md`, as a plain client of each broker sees it. The names are those of
//! the specifications, written out here instead of reused from our own code.

mod kafka;
mod rabbitmq;
mod sqs;

use message::{Connector, Message};
use tests::{Backend, Stage};
use time::format_description::well_known::Rfc3339;

use conformance::{relaying, sample};

tests::cases! { "wire/{on}/{case}":
    kafka_mock { a_plain_client_finds_every_field = kafka::mock }
    kafka {
        a_plain_client_finds_every_field = kafka::cluster,
        a_tombstone_is_a_record_without_a_value = kafka::tombstone,
    }
    rabbitmq { a_plain_client_finds_every_field = rabbitmq::queue }
    sqs { a_plain_client_finds_every_field = |stage: Stage| sqs::queue(stage, Backend::Sqs) }
    sqs_fifo { a_plain_client_finds_every_field = |stage: Stage| sqs::queue(stage, Backend::SqsFifo) }
}

/// Publishes a message that uses every field and one that uses none. Returns both.
async fn publish(connector: &dyn Connector, topic: &str) -> Result<[Message; 2], tests::Failure> {
    let messages = [sample::complete(topic)?, sample::binary(topic)?];
    let sent = relaying::send(connector, &messages).await?;
    assert_eq!(sent.confirmed.len(), messages.len(), "{:?}", sent.refused);
    Ok(messages)
}

/// Returns the attributes of a message without any prefix, by the table of CloudEvents 1.0.2.
fn attributes(message: &Message) -> Result<Vec<(&'static str, String)>, tests::Failure> {
    let mut attributes = vec![
        ("specversion", String::from("1.0")),
        ("id", message.id.to_string()),
        ("source", message.source.to_string()),
        ("type", message.kind.to_string()),
        ("time", message.time.format(&Rfc3339)?),
    ];
    attributes.extend(message.key.as_ref().map(|key| ("subject", key.to_string())));
    Ok(attributes)
}

/// Returns the trace context and free headers, under their own names.
fn plain_headers(message: &Message) -> Vec<(&str, String)> {
    let trace = message.trace.iter().flat_map(|trace| {
        [("traceparent", Some(trace.parent())), ("tracestate", trace.state())]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.to_owned())))
    });
    trace.chain(message.headers.iter().map(|(name, value)| (name, value.to_owned()))).collect()
}
