//! The SQS queue that a topic maps to.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ::brokers::sqs::{Connector, Subscriber};
use conformance::consuming::{WAIT, handle, receive, settle};
use conformance::{relaying, sample};
use harness::plain::sqs::Sqs;
use message::{Message, Topic};
use tests::{Backend, Broker, Failure, Outcome, Stage, eventually};

use crate::sqs;

tests::cases! { "subscription/{on}/{case}":
    sqs { the_topic_of_a_delivery_is_its_queue, a_slow_consumer_receives_no_message_in_vain = slow }
    sqs_fifo {
        the_topic_of_a_delivery_is_its_queue,
        a_slow_consumer_receives_no_message_in_vain = slow,
        messages_of_groups_in_hand_elsewhere_are_not_assigned = blocked,
    }
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

/// Goal: a consumer with room for one message at a time receives none in vain: SQS counts each
/// receive, and moves a message to the queue's dead-letter queue after a number of them. Oracle:
/// each message comes once, and none was received before; also those that a dropped call has asked
/// for.
async fn slow(_: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let config = sqs::config(Backend::Sqs.address()?).visibility_timeout_secs(2);
    for is_dropped in [false, true] {
        let name = broker.topic_name("slow");
        broker.create_topic(&name).await?;
        let messages = sample::orders(&name, 1, 4)?;
        let sent = relaying::send(broker.connector()?.as_ref(), &messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        let mut member = Subscriber::new(&config, name)?.subscribe().await?;
        if is_dropped {
            let ten = NonZeroUsize::MIN.saturating_add(9);
            drop(tokio::time::timeout(Duration::ZERO, member.receive(ten, WAIT)).await);
        }
        let mut handled = 0;
        while handled < messages.len() {
            let deliveries = member.receive(NonZeroUsize::MIN, WAIT).await?;
            for delivery in &deliveries {
                assert!(!delivery.redelivered, "message {handled}, dropped call: {is_dropped}");
                // More than half of the visibility timeout, after which an answer is given up.
                for _ in 0..3 {
                    tokio::time::sleep(Duration::from_millis(400)).await;
                    member.keep_alive(&[delivery.token]).await?;
                }
            }
            settle(&mut member, &deliveries).await?;
            handled += deliveries.len();
        }
        member.close().await?;
    }
    Ok(())
}

/// Goal: a consumer does not stall while others have a message of every group in hand, for which
/// the messages behind wait. Oracle: what it reports, before and after the first one is settled.
async fn blocked(_: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let name = broker.topic_name("blocked");
    broker.create_topic(&name).await?;
    let config = sqs::config(Backend::Sqs.address()?);
    let sent = relaying::send(broker.connector()?.as_ref(), &sample::orders(&name, 1, 20)?).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    let mut first = Subscriber::new(&config, name.clone())?.subscribe().await?;
    // One answer has up to ten messages of a group.
    let held = receive(&mut first, 10).await?;
    let second = Subscriber::new(&config, name)?.subscribe().await?;
    let second = &tokio::sync::Mutex::new(second);
    eventually("the other messages are not for it", || async move {
        let mut second = second.lock().await;
        let early = second.receive(NonZeroUsize::MIN, Duration::from_millis(100)).await?;
        assert!(early.is_empty(), "{early:?}");
        Ok((second.is_assigned() == Some(false)).then_some(()))
    })
    .await?;
    settle(&mut first, &held).await?;
    let mut second = second.lock().await;
    assert!(!receive(&mut second, 1).await?.is_empty());
    assert_eq!(second.is_assigned(), None);
    Ok(())
}
