//! URLs that name several nodes of a RabbitMQ cluster. The case has its own nodes.

use std::num::NonZeroUsize;

use ::brokers::rabbitmq::{Admin, Connector, QueueOptions, Subscriber};
use conformance::consuming::{WAIT, done, ids, within};
use conformance::{relaying, sample};
use message::{Connector as _, Fault, FaultScope, Publisher, Receipts, Submission, Subscription, Ticket};
use tests::{Failure, Outcome, Stage, brokers};
use tokio::sync::mpsc;

use tests::rabbitmq_node::RabbitmqNode;

tests::cases! { "nodes/{on}/{case}":
    night rabbitmq + xtask { a_node_that_stops_is_left_for_the_next = left }
}

/// Messages before the node stops, and after it.
const MESSAGES: i64 = 20;

/// A publishing session and its receipts.
struct Session {
    publisher: Box<dyn Publisher>,
    received: mpsc::UnboundedReceiver<message::Receipt>,
}

/// Goal: a publisher and a consumer that know two nodes of a cluster are connected to the first. It
/// stops, and both go on at the second, without a new configuration. Every message is confirmed
/// once, and received once. When no node is left, the error names both. Oracle: the receipts, the
/// ids that are received, and the count of the queue, which is at the second node.
async fn left(stage: Stage) -> Outcome {
    let first = RabbitmqNode::start(&stage).await?;
    let second = first.joined(&stage).await?;
    let queue = stage.unique("orders");
    // A classic queue is at the node where it was made.
    let admin = Admin::connect(&brokers::patient_rabbitmq(&second.url())).await?;
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    let both = format!("amqp://guest:guest@{},{}/%2f", first.address(), second.address());
    let config = brokers::patient_rabbitmq(&both);
    let connector = Connector::new(&config)?;
    let subscriber = Subscriber::new(&config, [queue.clone()])?;

    let messages = sample::orders(&queue, 1, 2 * MESSAGES)?;
    let before = &messages[..20];
    let after = &messages[20..];
    let mut session = open(&connector).await?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let mut received = Vec::new();
    for message in before {
        confirmed(&mut session, message).await??;
    }
    receive(&mut member, before.len(), &mut received).await?;

    first.crash().await?;
    let error = confirmed(&mut session, &after[0]).await?.err().ok_or("a node that stopped has confirmed")?;
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    let lost = within("the subscription ends", async {
        loop {
            if let Err(error) = member.receive(NonZeroUsize::MIN, WAIT).await {
                return Ok(error);
            }
        }
    });
    assert_eq!(lost.await?.fault(), Fault::Broker);
    let sent = relaying::send(&connector, after).await?;
    assert!(sent.refused.is_empty() && sent.sessions == 1, "{:?} in {}", sent.refused, sent.sessions);
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    receive(&mut member, after.len(), &mut received).await?;
    member.close().await?;
    assert_eq!(received, messages.iter().map(|message| message.id).collect::<Vec<_>>());
    assert_eq!(admin.count(&queue).await?, 0);

    // When no node is left, the error names each of them and no secret.
    admin.close().await;
    second.crash().await?;
    let (receipts, _) = Receipts::channel();
    let error = connector.connect(receipts).await.err().ok_or("nothing listens, and it connects")?;
    let text = error.to_string();
    assert_eq!(error.fault(), Fault::Broker, "{text}");
    for part in [first.address(), second.address(), String::from("no host of rabbitmq.url")] {
        assert!(text.contains(&part) && !text.contains("guest"), "{text}");
    }
    Ok(())
}

async fn open(connector: &Connector) -> Result<Session, Failure> {
    let (receipts, received) = Receipts::channel();
    Ok(Session { publisher: connector.connect(receipts).await?, received })
}

/// Publishes a message, and returns its outcome.
async fn confirmed(
    session: &mut Session,
    message: &message::Message,
) -> Result<Result<(), message::PublishError>, Failure> {
    let submission = Submission { ticket: Ticket(1), message: message.clone().into() };
    session.publisher.submit(vec![submission]).await;
    let receipt = session.received.recv().await.ok_or("no receipt")?;
    Ok(receipt.outcome.map(drop))
}

/// Receives and settles this many messages.
async fn receive(
    member: &mut Box<dyn Subscription>,
    count: usize,
    received: &mut Vec<message::MessageId>,
) -> Outcome {
    let deliveries = conformance::consuming::receive(member, count).await?;
    assert_eq!(ids(&deliveries).len(), count, "a message came twice");
    received.extend(deliveries.iter().filter_map(message::Delivery::id));
    Ok(member.settle(deliveries.iter().map(done).collect::<Result<_, _>>()?).await?)
}
