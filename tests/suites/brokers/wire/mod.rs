//! Every field of `docs/wire.md`, as a plain client of each broker sees it. The names are those of
//! the specifications, written out here instead of reused from our own code.

mod kafka;
mod rabbitmq;
mod sqs;

use libtest_mimic::Trial;
use message::{Connector, Message};
use tests::{Backend, Outcome, Stage, trial};
use time::format_description::well_known::Rfc3339;

use conformance::{relaying, sample};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        named(Backend::KafkaMock, |_| kafka::mock()),
        named(Backend::Kafka, kafka::cluster),
        named(Backend::Rabbitmq, rabbitmq::queue),
        named(Backend::Sqs, |stage| sqs::queue(stage, Backend::Sqs)),
        named(Backend::SqsFifo, |stage| sqs::queue(stage, Backend::SqsFifo)),
    ]
}

fn named<F>(backend: Backend, body: impl FnOnce(Stage) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    trial(format!("wire/{backend}/a_plain_client_finds_every_field"), &[backend], body)
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
