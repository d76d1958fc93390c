//! The SQS queue that a topic maps to.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::brokers::sqs::{Connector, Subscriber};
use conformance::consuming::handle;
use conformance::{relaying, sample};
use harness::plain::sqs::Sqs;
use message::{Message, Topic};
use tests::{Backend, Broker, Failure, Outcome, Stage};

use crate::sqs;

tests::cases! { "subscription/{on}/{case}":
    sqs { the_topic_of_a_delivery_is_its_queue }
    sqs_fifo { the_topic_of_a_delivery_is_its_queue }
}

/// Goal: a message of a topic that `queues` maps to a queue arrives there, and the delivery's topic
/// is the queue's name, whether the consumer gives the queue's name or its URL. Oracle: equality of
/// all other fields.
async fn the_topic_of_a_delivery_is_its_queue(_: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let name = broker.topic_name("orders");
    broker.create_topic(&name).await?;
    let queues = BTreeMap::from([(String::from("order.placed"), name.clone())]);
    let config = sqs::config(Backend::Sqs.address()?).queues(queues);
    let connector = Arc::new(Connector::new(&config)?);
    let url = Sqs::elasticmq(Backend::Sqs.address()?).await.url(&name).await?;
    for queue in [name.clone(), url] {
        let sent = sample::complete("order.placed")?;
        let outcome = relaying::send(connector.as_ref(), std::slice::from_ref(&sent)).await?;
        assert_eq!(outcome.confirmed.len(), 1, "{:?}", outcome.refused);
        let mut member = Subscriber::new(&config, queue)?.subscribe().await?;
        let arrived = only(handle(&mut member, 1).await?)?;
        member.close().await?;
        let topic = Topic::new(name.as_str())?;
        assert_eq!(arrived, Message { topic, ..sent });
    }
    Ok(())
}

fn only(deliveries: Vec<message::Delivery>) -> Result<Message, Failure> {
    let [delivery] = <[_; 1]>::try_from(deliveries).map_err(|all| format!("{} deliveries", all.len()))?;
    Ok(delivery.message.map_err(|malformed| malformed.problem)?)
}
