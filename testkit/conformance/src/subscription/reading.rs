//! Records that are read as messages, and records that cannot be read as messages.

use std::collections::{BTreeMap, BTreeSet};

use message::{ContentType, Delivery, EventType, Malformed, Message, Topic};
use uuid::Uuid;

use crate::consuming::{Scene, handle, receive};
use crate::{Foreign, Outcome, sample};

/// Goal: the whole message arrives unchanged, with any payload. Oracle: equality of every field.
pub(crate) async fn round_trip(scene: Scene) -> Outcome {
    let topic = &scene.topic;
    let mut sent = vec![sample::complete(topic)?, sample::binary(topic)?];
    // JSON whose bytes a parser or SQS would change, text that is not JSON, and an empty payload.
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

/// Goal: a record without a usable id is returned as malformed, with everything that it had, and
/// can be settled. Oracle: its problem, headers and payload; a new member does not get it again.
pub(crate) async fn malformed(scene: Scene) -> Outcome {
    let ids = [None, Some("order-7"), Some("0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55")];
    for id in ids {
        scene.broker.put(&scene.topic, &foreign(id)).await?;
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
    if scene.capabilities.has_wire {
        let problems = problems.into_iter().collect::<Vec<_>>().join("\n");
        for part in ["no id", "\"order-7\"", "0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55"] {
            assert!(problems.contains(part), "{part} is not in: {problems}");
        }
    }
    scene.assert_nothing_is_left().await
}

/// Goal: five records without an id, with the same payload and a different header each, are five
/// deliveries, and each is recognised on redelivery. Oracle: the subjects, by which an inbox counts
/// deliveries.
pub(crate) async fn told_apart(scene: Scene) -> Outcome {
    let tenants = ["t1", "t2", "t3", "t4", "t5"];
    for tenant in tenants {
        let header = (String::from("tenant"), tenant.to_owned());
        scene.broker.put(&scene.topic, &Foreign { header, ..foreign(None) }).await?;
    }
    let subjects =
        |deliveries: &[Delivery]| -> BTreeSet<Uuid> { deliveries.iter().map(Delivery::subject).collect() };
    let mut member = scene.subscribe().await?;
    let first = subjects(&receive(&mut member, tenants.len()).await?);
    assert_eq!(first.len(), tenants.len(), "deliveries of one payload are taken for one another");
    member.close().await?;
    let mut member = scene.subscribe().await?;
    let again = handle(&mut member, tenants.len()).await?;
    assert_eq!(subjects(&again), first, "a redelivery is taken for another delivery");
    Ok(member.close().await?)
}

const FOREIGN: &str = "not an order";

/// Returns a record of a foreign producer.
fn foreign(id: Option<&str>) -> Foreign {
    Foreign {
        id: id.map(str::to_owned),
        key: String::from("k"),
        header: (String::from("tenant"), String::from("acme")),
        payload: FOREIGN.into(),
    }
}

fn check_evidence(scene: &Scene, malformed: &Malformed) -> Outcome {
    assert_eq!(malformed.topic, scene.topic);
    assert_eq!(std::str::from_utf8(&malformed.payload)?, FOREIGN);
    let tenant = malformed.headers.iter().find(|(name, _)| name == "tenant");
    assert_eq!(tenant.map(|(_, value)| value.as_str()), Some("acme"), "{:?}", malformed.headers);
    Ok(())
}
