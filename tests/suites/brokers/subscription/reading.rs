//! Records read as messages, and those that are none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use brokers::sqs::{Config, Connector, Subscriber};
use message::{ContentType, EventType, Malformed, Message, Topic};
use tests::brokers::Record;
use tests::{Backend, Failure, Outcome};

use crate::consuming::{Scene, handle};
use crate::{relaying, sample, sqs};

/// Goal: the whole message arrives as it was sent, whatever its payload. Oracle: equality of every field.
pub(crate) async fn round_trip(scene: Scene) -> Outcome {
    let topic = &scene.topic;
    let mut sent = vec![sample::complete(topic)?, sample::binary(topic)?];
    // JSON whose bytes a parser or SQS would change, text that is no JSON, and nothing at all.
    for (content_type, payload) in [
        ("application/json", " {\"a\": 1.0}\r\n"),
        ("application/json", "\"\u{fffe} < & \u{7f}\""),
        ("application/json", "not JSON"),
        ("text/plain; charset=utf-8", "{\"a\":1}"),
        ("application/octet-stream", ""),
    ] {
        let message = Message::new(Topic::new(topic.as_str())?, EventType::new("order.placed")?, payload);
        sent.push(message.with_content_type(ContentType::new(content_type)?));
    }
    scene.publish(&sent).await?;
    let mut member = scene.subscribe().await?;
    let deliveries = handle(&mut member, sent.len()).await?;
    member.close().await?;
    let mut arrived = Vec::new();
    for delivery in deliveries {
        assert!(!delivery.redelivered && !delivery.origin.is_empty(), "{delivery:?}");
        arrived.push(delivery.message.map_err(|malformed| malformed.problem)?);
    }
    let by_id =
        |messages: Vec<Message>| -> BTreeMap<_, _> { messages.into_iter().map(|m| (m.id, m)).collect() };
    assert_eq!(by_id(arrived), by_id(sent));
    Ok(())
}

/// Goal: a record without an id, or with one that is none, is handed out as malformed with all that it had, and can
/// be settled. Oracle: its problem, headers and payload; a new member is not given it again.
pub(crate) async fn malformed(scene: Scene) -> Outcome {
    let ids = [None, Some("order-7"), Some("0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55")];
    for id in ids {
        scene.broker.put(&scene.topic, foreign(scene.broker.backend(), id)).await?;
    }
    let mut member = scene.subscribe().await?;
    let deliveries = handle(&mut member, ids.len()).await?;
    member.close().await?;
    assert_eq!(deliveries.len(), ids.len());
    let mut problems = BTreeSet::new();
    for delivery in deliveries {
        let malformed = delivery.message.err().ok_or("a message without a usable id was read")?;
        check_evidence(&scene, &malformed)?;
        problems.insert(malformed.problem);
    }
    // In memory there is no wire: it hands out the problem that was put there.
    if scene.broker.backend() != Backend::Memory {
        let problems = problems.into_iter().collect::<Vec<_>>().join("\n");
        for part in ["no id", "\"order-7\"", "0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55"] {
            assert!(problems.contains(part), "{part} is not in: {problems}");
        }
    }
    scene.assert_nothing_is_left().await
}

const FOREIGN: &str = "not an order";

/// A record of a foreign producer, in the names of the broker's CloudEvents binding.
fn foreign(backend: Backend, id: Option<&str>) -> Record {
    let prefix = match backend {
        Backend::Kafka | Backend::KafkaMock => "ce_",
        Backend::Rabbitmq => "cloudEvents_",
        _ => "",
    };
    let attributes = [
        ("specversion", Some("1.0")),
        ("type", Some("t")),
        ("datacontenttype", Some("text/plain")),
        ("id", id),
    ];
    let named = |(name, value): (&str, Option<&str>)| Some((format!("{prefix}{name}"), value?.to_owned()));
    let mut headers: BTreeMap<String, String> = attributes.into_iter().filter_map(named).collect();
    headers.insert(String::from("tenant"), String::from("acme"));
    Record { key: Some(String::from("k")), message_id: None, headers, payload: FOREIGN.into() }
}

fn check_evidence(scene: &Scene, malformed: &Malformed) -> Outcome {
    assert_eq!(malformed.topic, scene.topic);
    assert_eq!(std::str::from_utf8(&malformed.payload)?, FOREIGN);
    let tenant = malformed.headers.iter().find(|(name, _)| name == "tenant");
    assert_eq!(tenant.map(|(_, value)| value.as_str()), Some("acme"), "{:?}", malformed.headers);
    Ok(())
}

/// Goal: a topic that `queues` sends to a queue arrives there, and the delivery's topic is the queue's name, whether
/// the consumer names the queue or its URL. Oracle: equality of everything else.
pub(crate) async fn queue_of_a_topic(scene: Scene) -> Outcome {
    let queues = BTreeMap::from([(String::from("order.placed"), scene.topic.clone())]);
    let config = Config { queues, ..sqs::config(Backend::Sqs.address()?) };
    let connector = Arc::new(Connector::new(&config)?);
    let url = sqs::url(&sqs::plain().await?, &scene.topic).await?;
    for queue in [scene.topic.clone(), url] {
        let sent = sample::complete("order.placed")?;
        let outcome = relaying::send(connector.as_ref(), std::slice::from_ref(&sent)).await?;
        assert_eq!(outcome.confirmed.len(), 1, "{:?}", outcome.refused);
        let mut member = Subscriber::new(&config, queue)?.subscribe().await?;
        let arrived = only(handle(&mut member, 1).await?)?;
        member.close().await?;
        let topic = Topic::new(scene.topic.as_str())?;
        assert_eq!(arrived, Message { topic, ..sent });
    }
    Ok(())
}

fn only(deliveries: Vec<message::Delivery>) -> Result<Message, Failure> {
    let [delivery] = <[_; 1]>::try_from(deliveries).map_err(|all| format!("{} deliveries", all.len()))?;
    Ok(delivery.message.map_err(|malformed| malformed.problem)?)
}
