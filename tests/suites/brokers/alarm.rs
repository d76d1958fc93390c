//! A memory alarm of RabbitMQ. The case has its own node, so that no other one waits for it.

use std::num::NonZeroUsize;
use std::time::Duration;

use ::brokers::rabbitmq::{Admin, Connector, QueueOptions, Subscriber};
use conformance::consuming::{WAIT, handle, ids, within};
use conformance::sample;
use conformance::session::{End, PATIENCE, Session};
use message::{Connector as _, Subscription};
use tests::rabbitmq_node::RabbitmqNode;
use tests::{Failure, Outcome, Stage, brokers};

tests::cases! { "alarm/{on}/{case}":
    night rabbitmq + xtask { a_memory_alarm_ends_no_session_and_makes_no_copy = raised }
}

/// Time after which a window without confirms is sent again, unless an alarm is the reason.
const CONFIRM_TIMEOUT_MS: u64 = 5_000;
/// How long the alarm lasts: more than twice that time.
const ALARM: Duration = Duration::from_secs(12);

/// Goal: while the broker accepts nothing, the publisher's session waits and says why, and the
/// consumer gets what is in the queue. Afterwards the message that waited is stored once. Oracle:
/// the receipts; the reason that the client gives; the ids that are received.
async fn raised(stage: Stage) -> Outcome {
    let node = RabbitmqNode::start(&stage).await?;
    let config = brokers::patient_rabbitmq(&node.url()).confirm_timeout_ms(CONFIRM_TIMEOUT_MS);
    let admin = Admin::connect(&config).await?;
    let queue = stage.unique("orders");
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    admin.close().await;
    let subscriber = Subscriber::new(&config, [queue.clone()])?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let connector = Connector::new(&config)?;
    let mut session = Session::open(&connector).await?;
    assert_eq!(connector.last_error(), None);

    node.set_memory_limit("0").await?;
    let mut sent = Vec::new();
    // The alarm may begin a little later. The broker tells it only those who publish, and still
    // takes the message by which it notices them.
    let mut waits = false;
    let blocked = within("a message waits for the end of the alarm", async {
        while !waits || session.owed() == 0 {
            if session.owed() == 0 {
                waits = is_blocked(&connector);
                let message = sample::order(&queue, "a", i64::try_from(sent.len())?)?;
                sent.push(message.id);
                session.submit([(sent.len(), message)]).await;
            }
            if let Ok(answer) = tokio::time::timeout(WAIT, session.answer()).await {
                answer?.1?;
            }
        }
        Ok::<_, Failure>(())
    });
    blocked.await?;
    let stored = sent.len() - 1;
    let mut received = handle(&mut member, stored).await?;
    let answer = tokio::time::timeout(ALARM, session.answer()).await;
    assert!(answer.is_err(), "the broker accepts nothing: {answer:?}");
    assert!(is_blocked(&connector));

    node.set_memory_limit("0.2").await?;
    session.answer().await?.1?;
    assert!(!is_blocked(&connector), "the alarm is over");
    received.extend(handle(&mut member, 1).await?);
    session.end(End::Close(PATIENCE)).await?;
    received.extend(member.receive(NonZeroUsize::MIN, WAIT).await?);
    assert_eq!(received.len(), sent.len(), "a message came twice");
    assert_eq!(ids(&received), sent.into_iter().collect());
    Ok(member.close().await?)
}

fn is_blocked(connector: &Connector) -> bool {
    connector.last_error().is_some_and(|told| told.contains("blocks publishers"))
}
