//! An SQS message: one CloudEvent in the JSON event format.

use std::collections::BTreeMap;

use aws_sdk_sqs::types::{Message as Received, MessageSystemAttributeName as SystemAttribute};
use brokers::sqs::Connector;
use harness::plain::sqs::Sqs;
use message::Message;
use serde_json::{Map, Value};
use tests::brokers::create_sqs_queue;
use tests::{Backend, Outcome, Stage};

use super::{attributes, publish};
use crate::sqs;
use conformance::sample;

const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

/// Goal: a consumer in any language finds what `docs/wire.md` says. Oracle: the SDK's plain client.
pub(super) async fn queue(stage: Stage, backend: Backend) -> Outcome {
    let fifo = backend == Backend::SqsFifo;
    let queue = format!("{}{}", stage.unique("wire"), if fifo { ".fifo" } else { "" });
    let config = sqs::config(backend.address()?);
    create_sqs_queue(&stage, &config, &queue).await?;
    let [complete, binary] = publish(&Connector::new(&config)?, &queue).await?;
    let records = Sqs::elasticmq(backend.address()?).await.take_all(&queue, 2).await?;
    for message in [&complete, &binary] {
        let id = message.id.to_string();
        let record = records.iter().find(|record| attribute(record, "ce_id").as_deref() == Some(id.as_str()));
        let record = record.ok_or_else(|| format!("no record has the attribute ce_id {id}"))?;
        assert_body(record, message)?;
        assert_attributes(record, message);
        assert_fifo(record, message, fifo);
    }
    Ok(())
}

fn assert_body(record: &Received, message: &Message) -> Outcome {
    let body = record.body().ok_or("no body")?;
    let mut expected: Map<String, Value> =
        attributes(message)?.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    expected.insert(String::from("datacontenttype"), message.content_type.as_str().into());
    if let Some(trace) = &message.trace {
        expected.insert(String::from("traceparent"), trace.parent().into());
        expected.insert(String::from("tracestate"), trace.state().into());
    }
    let mut found: Map<String, Value> = serde_json::from_str(body)?;
    // Free headers are an object as text, because the format has no objects as attribute values.
    let headers: BTreeMap<String, String> = match found.remove("headers") {
        Some(text) => serde_json::from_str(text.as_str().ok_or("headers is not a string")?)?,
        None => BTreeMap::new(),
    };
    let sent: BTreeMap<String, String> =
        message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(headers, sent);
    if message.content_type.is_json() {
        let payload = std::str::from_utf8(&message.payload)?;
        assert!(body.contains(&format!(r#""data":{payload}"#)), "not byte for byte: {body}");
        expected.insert(String::from("data"), serde_json::from_str(payload)?);
    } else {
        expected.insert(String::from("data_base64"), sample::BINARY_BASE64.into());
    }
    assert_eq!(found, expected);
    Ok(())
}

fn assert_attributes(record: &Received, message: &Message) {
    let mut expected = BTreeMap::from([
        ("ce_id", message.id.to_string()),
        ("ce_type", message.kind.to_string()),
        ("ce_source", message.source.to_string()),
        ("content-type", STRUCTURED.to_owned()),
    ]);
    expected.extend(message.trace.as_ref().map(|trace| ("traceparent", trace.parent().to_owned())));
    let attributes = record.message_attributes().into_iter().flatten();
    let found: BTreeMap<&str, String> = attributes
        .map(|(name, value)| (name.as_str(), value.string_value().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(found, expected);
}

fn assert_fifo(record: &Received, message: &Message, fifo: bool) {
    let system = |name| record.attributes().and_then(|all| all.get(&name)).map(String::as_str);
    let (group, id) =
        (system(SystemAttribute::MessageGroupId), system(SystemAttribute::MessageDeduplicationId));
    if !fifo {
        assert_eq!((group, id), (None, None));
        return;
    }
    let id = id.unwrap_or_default();
    let repeated = id.strip_prefix(message.id.to_string().as_str());
    assert!(repeated.is_some_and(|digest| digest.len() == 65), "{id}");
    match &message.key {
        Some(key) => assert_eq!(group, Some(key.as_str())),
        // A message without a key has a group of its own.
        None => assert!(group.is_some_and(|group| group.contains(&message.id.to_string())), "{group:?}"),
    }
}

fn attribute(record: &Received, name: &str) -> Option<String> {
    Some(record.message_attributes()?.get(name)?.string_value()?.to_owned())
}
