//! An AMQP 0-9-1 message: CloudEvents AMQP binding, binary mode, with the properties of 0-9-1.

use std::collections::BTreeMap;
use std::sync::Arc;

use brokers::rabbitmq::{Admin, Config, Connector, QueueOptions};
use harness::plain::rabbitmq::Rabbitmq;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};
use message::Message;
use tests::{Backend, Outcome, Stage};

use super::{attributes, plain_headers, publish};
use conformance::sample;

const APP: &str = "workload";

/// Goal: a consumer in any language finds what `docs/wire.md` says, with an exchange and an
/// application id configured. Oracle: a plain client.
pub(super) async fn queue(stage: Stage) -> Outcome {
    let url = Backend::Rabbitmq.address()?;
    let (queue, exchange) = (stage.unique("wire"), stage.unique("events"));
    let topic = "order.placed";
    let mut config = Config::new(&url);
    let admin = Admin::connect(&config).await?;
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    admin.declare_exchange(&exchange).await?;
    admin.bind(&queue, &exchange, "order.*").await?;
    let (made, names) = (config.clone(), (queue.clone(), exchange.clone()));
    stage.afterwards(format!("queue {queue}, exchange {exchange}"), async move {
        let admin = Admin::connect(&made).await?;
        admin.delete_queue(&names.0).await?;
        admin.delete_exchange(&names.1).await?;
        admin.close().await;
        Ok(())
    });
    admin.close().await;
    config.exchange = exchange.clone();
    config.app_id = Some(APP.to_owned());
    let [complete, binary] = publish(Arc::new(Connector::new(&config)?).as_ref(), topic).await?;
    // A confirmed message is in the queue already, so there is nothing to wait for.
    let records = Rabbitmq::new(url).take_all(&queue, 0).await?;
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!((record.exchange.as_str(), record.routing_key.as_str()), (exchange.as_str(), topic));
        let id = record.properties.message_id().as_ref().ok_or("no message_id")?;
        let message = if id.as_str() == complete.id.to_string() { &complete } else { &binary };
        assert_fields(record, message)?;
    }
    assert!(records.iter().any(|record| record.data == sample::BINARY), "the bytes were changed");
    Ok(())
}

fn assert_fields(record: &Delivery, message: &Message) -> Outcome {
    assert_eq!(record.data, message.payload);
    let properties = &record.properties;
    let text = |property: &Option<ShortString>| property.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.message_id()), Some(message.id.to_string()));
    assert_eq!(text(properties.kind()), Some(message.kind.to_string()));
    assert_eq!(text(properties.content_type()), Some(message.content_type.to_string()));
    assert_eq!(text(properties.app_id()).as_deref(), Some(APP));
    assert_eq!(*properties.delivery_mode(), Some(2), "not persistent");
    assert_eq!(*properties.timestamp(), Some(u64::try_from(message.time.unix_timestamp())?));
    let mut found = BTreeMap::new();
    for (name, value) in properties.headers().as_ref().ok_or("no headers")?.inner() {
        let AMQPValue::LongString(text) = value else { return Err(format!("{name} is {value:?}").into()) };
        found.insert(name.to_string(), text.to_string());
    }
    let mut expected: BTreeMap<String, String> = attributes(message)?
        .into_iter()
        .map(|(name, value)| (format!("cloudEvents_{name}"), value))
        .collect();
    expected.extend(plain_headers(message).into_iter().map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(found, expected);
    Ok(())
}
